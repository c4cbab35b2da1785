"""Pools whose content KV events with medium STORAGE tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.config.shared_cache import SharedEventsConfig
from gateway.l2.base import Chunks, chunks_of
from gateway.l2.held import Held
from gateway.l2.recency import RecencySet
from routing.hashing import HashSpec
from routing.types import BlockKey

# Until the first event tells; vLLM's default.
_DEFAULT_BLOCK_TOKENS = 16


class StorageEvents(Held):
    """A `SharedCache` fed by events. A block is there for every replica, whoever stored it.

    Args:
        config: Validated.
        model: Its key in block keys.
        now: Monotonic seconds.

    Attributes:
        chunk_tokens: The block size of the engines that tell.
    """

    kind = "events"

    def __init__(self, config: SharedEventsConfig, model: str, now: Callable[[], float]) -> None:
        super().__init__(_DEFAULT_BLOCK_TOKENS, RecencySet(config.max_blocks, config.ttl_s), now)
        self._model = model

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

    def computed(self, chunks: Chunks) -> None:
        """Change nothing: events tell what is stored."""
