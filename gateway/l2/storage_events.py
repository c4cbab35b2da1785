"""Pools whose content KV events with medium STORAGE tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gateway.config.shared_cache import SharedEventsConfig
from gateway.l2.base import Chunks, PoolHealth, SharedPrefix, chunks_of
from gateway.l2.recency import RecencySet
from routing.hashing import HashSpec
from routing.types import BlockKey

# Until the first event tells; vLLM's default.
_DEFAULT_BLOCK_TOKENS = 16


class StorageEvents:
    """A `SharedCache` fed by events. A block is there for every replica, whoever stored it.

    Args:
        config: Validated.
        model: Its key in block keys.
        now: Monotonic seconds.

    Attributes:
        chunk_tokens: The block size of the engines that tell.
    """

    kind = "events"
    lookup_timeout_s = 0.0

    def __init__(self, config: SharedEventsConfig, model: str, now: Callable[[], float]) -> None:
        self.chunk_tokens = _DEFAULT_BLOCK_TOKENS
        self._model = model
        self._now = now
        self._held = RecencySet(config.max_blocks, config.ttl_s)

    def stored(self, keys: Sequence[BlockKey], block_size: int) -> None:
        """Record blocks that an engine stored in the pool."""
        self.chunk_tokens = block_size
        self._held.store(keys, self._now())
        self._held.refresh(keys, self._now())

    def removed(self, keys: Sequence[BlockKey]) -> None:
        """Record blocks that are gone, for every replica."""
        self._held.remove(keys)

    def chunks(self, packed: bytes, lora: str, salt: str) -> Chunks | None:
        """Return a prompt's blocks."""
        return chunks_of(packed, HashSpec(self._model, self.chunk_tokens, lora, salt))

    def known(self, chunks: Chunks) -> SharedPrefix:
        """Return what events told."""
        run = self._held.leading_run(chunks.keys, self._now())
        return SharedPrefix(chunks, run, self.chunk_tokens)

    def look_up(self, chunks: Chunks) -> asyncio.Future[SharedPrefix] | SharedPrefix:
        """Return what events told."""
        return self.known(chunks)

    def computed(self, chunks: Chunks) -> None:
        """Change nothing: events tell what is stored."""

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
