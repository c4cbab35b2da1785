"""Pools that tell nothing: what replicas computed is taken to be there."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.shared_cache import AssumeWriteThroughConfig
from gateway.l2.base import Chunks, chunks_of
from gateway.l2.held import Held
from gateway.l2.recency import RecencySet
from routing.hashing import HashSpec


class WriteThrough(Held):
    """A `SharedCache` of what went through us.

    Args:
        config: Validated.
        model: Its key in block keys.
        now: Monotonic seconds.
    """

    kind = "assume_write_through"

    def __init__(
        self, config: AssumeWriteThroughConfig, model: str, now: Callable[[], float]
    ) -> None:
        num_chunks = max(1, config.capacity_tokens // config.chunk_tokens)
        super().__init__(config.chunk_tokens, RecencySet(num_chunks, config.ttl_s), now)
        self._config = config
        self._model = model

    def chunks(self, packed: bytes, lora: str, salt: str) -> Chunks | None:
        """Return a prompt's chunks."""
        salt = salt if self._config.salted else ""
        return chunks_of(packed, HashSpec(self._model, self.chunk_tokens, lora, salt))

    def computed(self, chunks: Chunks) -> None:
        """Take a prompt's chunks to be there, as soon as they can be written."""
        now = self._now()
        run = self._held.leading_run(chunks.keys, now)
        self._held.store(chunks.keys, now + self._config.delay_s)
        self._held.refresh(chunks.keys[:run], now)
