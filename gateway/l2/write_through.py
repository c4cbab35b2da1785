"""Pools that tell nothing: what replicas computed is taken to be there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.config.shared_cache import AssumeWriteThroughConfig
from gateway.l2.base import Chunks, PoolHealth, SharedPrefix, chunks_of
from gateway.l2.recency import RecencySet
from routing.hashing import HashSpec


class WriteThrough:
    """A `SharedCache` of what went through us.

    Args:
        config: Validated.
        model: Its key in block keys.
        now: Monotonic seconds.
    """

    kind = "assume_write_through"
    lookup_timeout_s = 0.0

    def __init__(
        self, config: AssumeWriteThroughConfig, model: str, now: Callable[[], float]
    ) -> None:
        self.chunk_tokens = config.chunk_tokens
        self._config = config
        self._model = model
        self._now = now
        self._held = RecencySet(max(1, config.capacity_tokens // config.chunk_tokens), config.ttl_s)

    def chunks(self, packed: bytes, lora: str, salt: str) -> Chunks | None:
        """Return a prompt's chunks."""
        salt = salt if self._config.salted else ""
        return chunks_of(packed, HashSpec(self._model, self.chunk_tokens, lora, salt))

    def known(self, chunks: Chunks) -> SharedPrefix:
        """Return what should be there."""
        run = self._held.leading_run(chunks.keys, self._now())
        return SharedPrefix(chunks, run, self.chunk_tokens)

    def look_up(self, chunks: Chunks) -> asyncio.Future[SharedPrefix] | SharedPrefix:
        """Return what should be there."""
        return self.known(chunks)

    def computed(self, chunks: Chunks) -> None:
        """Take a prompt's chunks to be there, as soon as they can be written."""
        now = self._now()
        run = self._held.leading_run(chunks.keys, now)
        self._held.store(chunks.keys, now + self._config.delay_s)
        self._held.refresh(chunks.keys[:run], now)

    def refute(self, prefix: SharedPrefix, num_served: int) -> None:
        """Drop what a replica did not find."""
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
