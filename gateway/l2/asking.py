"""One prompt's look-up in its model's pool, beside the one in the index."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from gateway.l2.base import SharedCache, SharedPrefix
from gateway.l2.host_memory import HostMemories
from gateway.prompt.prepare import Prompt
from gateway.replicas.registry import Replica
from routing.credit import with_shared
from routing.types import PrefixMatch, ReplicaId


class SharedQuestion:
    """A look-up that was begun and may need a moment.

    Args:
        cache: The pool.
        prompt: Whose token ids are known.
        lora: Its adapter; empty for none.
        now: Monotonic seconds.

    Attributes:
        prefix: What is known to be there; None where the prompt can never be in the pool.
        is_late: Whether the answer did not come in time.
    """

    def __init__(
        self, cache: SharedCache, prompt: Prompt, lora: str, now: Callable[[], float]
    ) -> None:
        self._cache = cache
        self._now = now
        self._pending: asyncio.Future[SharedPrefix] | None = None
        self.prefix: SharedPrefix | None = None
        self.is_late = False
        packed = prompt.packed_tokens or b""
        self._chunks = cache.chunks(packed, lora, prompt.body.cache_salt)
        if self._chunks is None:
            return
        found = cache.look_up(self._chunks)
        if isinstance(found, SharedPrefix):
            self.prefix = found
        else:
            self._pending = found
            self._until = now() + cache.lookup_timeout_s

    async def answer(self) -> SharedPrefix | None:
        """Return what the pool holds: what was found in time, else what is known anyway."""
        if self._pending is not None and self._chunks is not None:
            left_s = self._until - self._now()
            # Not cancelled when it is late: what it finds is for the next turn, and for others.
            await asyncio.wait({self._pending}, timeout=max(0.0, left_s))
            self.is_late = not _has_answer(self._pending)
            self.prefix = (
                self._cache.known(self._chunks) if self.is_late else self._pending.result()
            )
            self._pending = None
        return self.prefix


def _has_answer(question: asyncio.Future[SharedPrefix]) -> bool:
    # A reload cancels the questions of a pool that it closes; their requests go on.
    return question.done() and not question.cancelled() and question.exception() is None


def credit_shared(
    matches: Mapping[ReplicaId, PrefixMatch],
    replicas: Iterable[Replica],
    prefix: SharedPrefix | None,
    host: HostMemories | None,
    num_prompt_tokens: int,
) -> Mapping[ReplicaId, PrefixMatch]:
    """Return all replicas' matches with what host memory and the pool add to each of them."""
    if prefix is None or (host is None and not prefix.num_chunks):
        return matches
    sizes = [(replica.replica_id, replica.block_size) for replica in replicas]
    reach = [(replica_id, size) for replica_id, size in sizes if size]
    if host is not None:
        matches = host.credit(matches, reach, prefix.chunks, num_prompt_tokens)
    return with_shared(matches, reach, prefix.num_tokens, num_prompt_tokens)
