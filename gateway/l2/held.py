"""What pools that nobody has to ask have in common: what they hold was told beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.l2.base import Chunks, PoolHealth, SharedPrefix
from gateway.l2.recency import RecencySet


class Held:
    """The content of a `SharedCache`, as it was told.

    Args:
        chunk_tokens: Tokens a chunk.
        held: The content, empty.
        now: Monotonic seconds.
    """

    lookup_timeout_s = 0.0

    def __init__(self, chunk_tokens: int, held: RecencySet, now: Callable[[], float]) -> None:
        self.chunk_tokens = chunk_tokens
        self._held = held
        self._now = now

    def known(self, chunks: Chunks) -> SharedPrefix:
        """Return what should be there."""
        run = self._held.leading_run(chunks.keys, self._now())
        return SharedPrefix(chunks, run, self.chunk_tokens)

    def look_up(self, chunks: Chunks) -> asyncio.Future[SharedPrefix] | SharedPrefix:
        """Return what should be there, at once."""
        return self.known(chunks)

    def refute(self, prefix: SharedPrefix, num_served: int) -> None:
        """Drop what a replica did not find: the pool lost it without a word."""
        self._held.remove(prefix.chunks.keys[num_served // self.chunk_tokens :])

    def flush(self) -> int:
        """Drop everything."""
        return self._held.clear()

    async def run(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def health(self) -> PoolHealth:
        """Return how it is."""
        return PoolHealth(known_chunks=len(self._held))

    def status(self) -> dict[str, Any]:
        """Return nothing more."""
        return {}
