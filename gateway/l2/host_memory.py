"""Host memory (L1) of replicas whose LMCache tells what it stores there, and never what it drops.

In process, LMCache's events carry chunks with medium CPU and no removals. So each replica's host
memory is modelled: as large as it is configured, the least recently used chunk goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from gateway.l2.base import Chunks
from gateway.l2.recency import RecencySet
from routing.credit import taken_tokens
from routing.types import NO_MATCH, BlockKey, PrefixMatch, ReplicaId


class HostMemories:
    """The host memories of one model's replicas; each helps its own replica only.

    Args:
        capacity_tokens: Of one replica.
        chunk_tokens: Tokens a chunk.
        now: Monotonic seconds.
    """

    def __init__(self, capacity_tokens: int, chunk_tokens: int, now: Callable[[], float]) -> None:
        self._capacity = max(1, capacity_tokens // chunk_tokens)
        self._chunk_tokens = chunk_tokens
        self._now = now
        self._held_by_replica: dict[ReplicaId, RecencySet] = {}

    def num_chunks(self, replica: ReplicaId) -> int:
        """Return how many chunks a replica probably holds."""
        held = self._held_by_replica.get(replica)
        return 0 if held is None else len(held)

    def stored(self, replica: ReplicaId, keys: Sequence[BlockKey]) -> None:
        """Record chunks that a replica's events told."""
        held = self._held_by_replica.get(replica)
        if held is None:
            held = self._held_by_replica[replica] = RecencySet(self._capacity, inf)
        held.store(keys, self._now())

    def used(self, replica: ReplicaId, chunks: Chunks) -> None:
        """Note that a prompt was looked for there: what it holds of it is the newest now."""
        held = self._held_by_replica.get(replica)
        if held is not None:
            now = self._now()
            held.store(chunks.keys[: held.leading_run(chunks.keys, now)], now)

    def forget(self, replica: ReplicaId) -> None:
        """Forget a replica that is gone, or whose process is a new one."""
        self._held_by_replica.pop(replica, None)

    def credit(
        self,
        matches: Mapping[ReplicaId, PrefixMatch],
        replicas: Iterable[tuple[ReplicaId, int]],
        chunks: Chunks,
        num_prompt_tokens: int,
    ) -> Mapping[ReplicaId, PrefixMatch]:
        """Return matches with what each replica's own host memory adds to its GPU memory.

        Args:
            matches: As the index has them.
            replicas: With their block sizes.
            chunks: The prompt.
            num_prompt_tokens: Of the whole prompt; its last token is always computed.
        """
        merged: dict[ReplicaId, PrefixMatch] = {}
        now = self._now()
        for replica, block_size in replicas:
            held = self._held_by_replica.get(replica)
            run = 0 if held is None else held.leading_run(chunks.keys, now)
            if not run:
                continue
            taken = taken_tokens(run * self._chunk_tokens, num_prompt_tokens, block_size)
            match = matches.get(replica, NO_MATCH)
            l1_tokens = taken - match.l0_tokens
            if l1_tokens > match.l1_tokens:
                l2_tokens = max(0, match.total_tokens - match.l0_tokens - l1_tokens)
                merged[replica] = PrefixMatch(
                    match.l0_tokens, l1_tokens, l2_tokens, match.confirmed_tokens
                )
        return {**matches, **merged} if merged else matches
