"""Metrics of the shared pool (L2): what it serves, how it is, and what loading costs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from gateway.observability.declaring import Across, Group

_LABELS = "model"


class SharedCacheMetrics(Group):
    """What models' shared pools hold and serve. Only for models with a `shared_cache`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.lookups = self._counter(
            "shared_cache_lookups",
            "Prompts that were looked for in the pool: `hit` where some of it was there, `miss` "
            "where none was, `late` where the answer did not come in time.",
            "model result",
        )
        self.predicted_tokens = self._counter(
            "shared_cache_predicted_tokens",
            "Tokens that decisions expected the pool to serve, of answers whose usage told cached "
            "tokens and where loading was worth it.",
            "replica",
        )
        self.served_tokens = self._counter(
            "shared_cache_served_tokens",
            "Of these, tokens that the pool must have served, as the engine had more cached than "
            "its own memory explains.",
            "replica",
        )
        self.refuted_chunks = self._counter(
            "shared_cache_refuted_chunks",
            "Chunks that were in the pool and that a replica did not find.",
            "model",
        )
        self.not_served = self._gauge(
            "shared_cache_not_served",
            "1 where a replica's engine takes nothing from the pool although its prompts are "
            "there, several times in a row: its LMCache lost the pool's address or mount.",
            "replica",
            Across.MAX,
        )
        self.down = self._gauge(
            "shared_cache_down",
            "1 while the pool cannot be asked, so that requests go on without it; the log and the "
            "status say why.",
            _LABELS,
            Across.MAX,
        )
        self.downs = self._gauge(
            "shared_cache_downs", "Times that the pool could not be asked any more.", _LABELS,
            Across.SUM,
        )  # fmt: skip
        self.threads_busy = self._gauge(
            "shared_cache_threads_busy",
            "Threads inside a call to the mount, those that hang included.",
            _LABELS,
            Across.SUM,
        )
        self.never_matches = self._gauge(
            "shared_cache_never_matches",
            "1 where the directory has files of LMCache's and none ever matched: a setting is not "
            "the engines'; the status says which.",
            _LABELS,
            Across.MIN,
        )
        self.known_chunks = self._gauge(
            "shared_cache_known_chunks", "Chunks that something is known of.", _LABELS, Across.MAX
        )


class StorageMetrics(Group):
    """The storage behind pools, as itself or the mount tells; what nobody tells has no sample."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.capacity = self._storage("capacity_bytes", "Size of the storage behind the pool.")
        self.used = self._storage("used_bytes", "Used of that.")
        self.evicted_files = self._storage(
            "evicted_files", "Files that Curvine evicted by its quota, since its master began."
        )
        self.evicted_bytes = self._storage("evicted_bytes", "Bytes of those.")
        self.written_bytes = self._storage(
            "written_bytes", "Written since the workers began; its rate is the pool's write rate."
        )
        self.lost_workers = self._storage("lost_workers", "Workers that the master lost.")
        self.failed_disks = self._storage("failed_disks", "Disks that workers gave up.")
        self.unreachable = self._storage(
            "unreachable_sources", "Sources that did not answer the last time."
        )

    def _storage(self, name: str, text: str) -> Gauge:
        return self._gauge(f"shared_storage_{name}", text, _LABELS, Across.MAX)


class TierMetrics(Group):
    """Evictions by tier, and what loading from each costs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.removed_blocks = self._gauge(
            "kv_event_removed_blocks",
            "Blocks that a replica's events reported as evicted, by tier, since it joined.",
            "replica tier",
            Across.MAX,
        )
        self.l1_evictions = self._gauge(
            "replica_l1_evicted_chunks",
            "Chunks that a replica's LMCache evicted from host memory, as its own counter says.",
            "replica",
            Across.MAX,
        )
        self.price_s = self._gauge(
            "price_seconds",
            "Prices in force: `prefill_1000` (1,000 tokens from a prompt's start), `l1_latency`, "
            "`l1_1000`, `l2_latency`, `l2_1000` (1,000 tokens loaded, without the latency).",
            "model price",
            Across.MAX,
        )
        self.break_even_tokens = self._gauge(
            "break_even_tokens",
            "Tokens from which on loading a prompt's beginning from a tier beats computing it; "
            "+Inf where it never does.",
            "model tier",
            Across.MAX,
        )


def show(gauge: Gauge, model: str, number: float | None) -> None:
    """Set a model's sample; with None there is none, as the last one would pass for today's."""
    if number is None:
        gauge.remove(model)
    else:
        gauge.labels(model).set(number)
