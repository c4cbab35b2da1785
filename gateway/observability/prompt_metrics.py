"""The metrics of how prompts become token ids."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from gateway.observability.declaring import Across, Group
from gateway.prompt.bytecache import ByteCache


class PromptMetrics(Group):
    """What is kept of prompts, and which of them depend on the day."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.dated = self._counter(
            "prompt_dated",
            "Prompts whose chat template asks for the day: they match until midnight, and not "
            "where an engine's clock is on another day than the gateway's.",
            "model",
        )
        self.kept = self._gauge(
            "prompt_cache_bytes",
            "Memory of what is kept of prompts, token ids and block keys; its bound is "
            "`prepare.cache_bytes`.",
            "",
            Across.SUM,
        )
        self.hits = self._gauge(
            "prompt_cache_hits",
            "Texts between special tokens, and pages of block keys, that were known already.",
            "",
            Across.SUM,
        )
        self.misses = self._gauge(
            "prompt_cache_misses", "Those that had to be computed.", "", Across.SUM
        )

    def follow(self, cache: ByteCache) -> None:
        """Show from now on what a cache says of itself."""
        readers: tuple[Callable[[], float], ...] = (
            lambda: cache.num_bytes,
            lambda: cache.hits,
            lambda: cache.misses,
        )
        for gauge, read in zip((self.kept, self.hits, self.misses), readers, strict=True):
            gauge.set_function(read)
