"""What pools that are asked have in common: they remember what they were told of chunks."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.shared_cache import LmcacheCoordinatorConfig, LmcacheFsConfig
from gateway.l2.base import Chunks, SharedPrefix
from gateway.l2.known import KnownChunks

# Chunks whose presence is remembered: 200,000 of 256 tokens are 51 million tokens and 40 MB.
MAX_KNOWN_CHUNKS = 200_000
# A file that a replica did not find although it is there may be unreadable for long: its last
# copy is lost, or the engine's LMCache is not what it should be.
REFUTED_S = 30.0


class Remembered:
    """The memory of a `SharedCache` that has to look, or to ask.

    Args:
        config: Validated.
        now: Monotonic seconds.
    """

    def __init__(
        self, config: LmcacheFsConfig | LmcacheCoordinatorConfig, now: Callable[[], float]
    ) -> None:
        self.chunk_tokens = config.chunk_tokens
        self.lookup_timeout_s = config.lookup_timeout_s
        self._known = KnownChunks(MAX_KNOWN_CHUNKS, config.present_s, config.absent_s, now)

    def known(self, chunks: Chunks) -> SharedPrefix:
        """Return what was found lately."""
        return SharedPrefix(chunks, self._known.span(chunks.keys)[0], self.chunk_tokens)

    def computed(self, chunks: Chunks) -> None:
        """Look again for what was absent: it is written now."""
        self._known.written(chunks.keys)

    def refute(self, prefix: SharedPrefix, num_served: int) -> None:
        """Count the chunks that a replica did not find as absent for a while."""
        first = num_served // self.chunk_tokens
        self._known.refute(prefix.chunks.keys[first : prefix.num_chunks], REFUTED_S)

    def flush(self) -> int:
        """Forget what was found."""
        return self._known.flush()
