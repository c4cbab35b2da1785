"""Every metric of the gateway, declared once: here, or in a file that `Metrics` names.

docs/metrics.md is generated from them. Names are `warmroute_<noun>_<unit>[_total]`. Every label is
bounded: configured models, replicas, policies, known paths and our own words. Never a prompt, user,
key or request id.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gateway.observability.background_metrics import BackgroundMetrics
from gateway.observability.declaring import Across, Group
from gateway.observability.event_metrics import EventMetrics
from gateway.observability.gateway_metrics import GatewayMetrics
from gateway.observability.index_metrics import SharedIndexMetrics
from gateway.observability.prompt_metrics import PromptMetrics
from gateway.observability.redis_metrics import RedisMetrics
from gateway.observability.shared_metrics import SharedCacheMetrics, StorageMetrics, TierMetrics

# From a full cache hit on an idle replica (10 ms) to a nine-minute prefill.
TTFT_BUCKETS_S = (
    0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0,
)  # fmt: skip
# From a block lookup (20 us) to the preparation deadline.
STEP_BUCKETS_S = (20e-6, 50e-6, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5)


class RequestMetrics(Group):
    """What happened to requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.ended = self._counter(
            "requests", "Requests that ended; status 499: the client left.", "model path status"
        )
        self.failures = self._counter(
            "request_failures",
            "Requests that did not get a whole answer of a replica, by why. An answer that broke "
            "after it began counts here, and with the status that the client got in the metric "
            "above.",
            "model reason",
        )
        self.decisions = self._counter(
            "decisions",
            "Routing decisions by what was known (rung) and why the replica was chosen (reason); "
            "reason `spill` counts replicas passed over because of the load bound.",
            "model policy rung reason",
        )
        self.ttft = self._histogram(
            "ttft_seconds",
            "Request received to first byte of the answer's body, by the deepest tier that the "
            "decision expected to serve part of the prompt (`none`: no match).",
            "model tier",
            TTFT_BUCKETS_S,
        )
        self.duration = self._histogram(
            "request_duration_seconds", "Request received to its end.", "model", TTFT_BUCKETS_S
        )
        self.step = self._histogram(
            "step_seconds",
            "Time of one step before forwarding: `prepare` renders and tokenizes, `lookup` asks "
            "the index, `decide` ranks and reserves.",
            "step",
            STEP_BUCKETS_S,
        )
        self.prepare_problems = self._counter(
            "prepare_problems", "Prompts routed without token ids, by why.", "model problem"
        )
        self.lookup_timeouts = self._counter(
            "lookup_timeouts", "Index look-ups that missed their deadline.", ""
        )
        self.lookup_failures = self._counter(
            "lookup_failures",
            "Index look-ups that failed; requests went on without matches.",
            "",
        )
        self.pool_failovers = self._counter(
            "pool_failovers",
            "Requests that another pool of their name took, as no replica of this one could "
            "answer; `model` is the pool that was passed over.",
            "model",
        )
        self.retries = self._counter(
            "retries", "Requests that moved on to the next replica, by why.", "replica reason"
        )
        self._declare_gauges()

    def _declare_gauges(self) -> None:
        self.admitted = self._gauge(
            "admitted_requests",
            "Requests that have a place, of `limits.max_in_flight`, until their answers end.",
            "",
            Across.SUM,
        )
        self.queued = self._gauge(
            "queued_requests",
            "Requests that wait for a place, `limits.queue_requests` at most.",
            "",
            Across.SUM,
        )


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Where one replica's tokens are counted, of one rung."""

    prompt: Counter
    predicted: Counter
    actual: Counter
    over: Counter
    under: Counter


class ReplicaMetrics(Group):
    """How replicas are, and what they say they had cached."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._tokens: dict[tuple[str, str], CachedTokens] = {}
        self.prompt_tokens = self._counter(
            "prompt_tokens",
            "Prompt tokens of answers whose usage told cached tokens, by what was known of the "
            "prompt; the base of the three below.",
            "replica rung",
        )
        self.predicted_cached_tokens = self._counter(
            "predicted_cached_tokens",
            "Of these, tokens that the decision expected to be cached.",
            "replica rung",
        )
        self.actual_cached_tokens = self._counter(
            "actual_cached_tokens",
            "Of these, tokens that the engine says were cached. Divided by prompt tokens: the "
            "prefix hit ratio of the replica.",
            "replica rung",
        )
        self.cached_tokens_error = self._counter(
            "cached_tokens_error",
            "Of these, tokens that were expected and not cached (side `over`), and the other way "
            "round (`under`), summed request by request.",
            "replica rung side",
        )
        self._declare_gauges()

    def _declare_gauges(self) -> None:
        self.distrusted = self._gauge(
            "replica_distrusted",
            "1 where decisions do not count on what a replica should hold, as it said of several "
            "requests in a row that it had not cached what was expected.",
            "replica",
            Across.MAX,
        )
        self.in_flight = self._gauge(
            "replica_in_flight_requests", "Requests sent and not yet ended.", "replica", Across.SUM
        )
        self.prefill = self._gauge(
            "replica_outstanding_prefill_seconds",
            "Estimated prefill still to do.",
            "replica",
            Across.SUM,
        )
        self.contradiction = self._gauge(
            "replica_contradiction",
            "1 where a replica says otherwise than the configuration (`name`, `block_size`, "
            "`kv_events`) or than most replicas of its model (`model_root`, `max_model_len`); the "
            "log and the status say what.",
            "replica fact",
            Across.MAX,
        )
        self.shared_address = self._gauge(
            "replica_shared_address",
            "1 where several engines answer at a replica's address, so that nobody chooses between "
            "them; the log says the cure.",
            "replica",
            Across.MAX,
        )
        self.skew = self._gauge(
            "skew_ratio",
            "Max over mean in-flight requests across ready replicas, relative to their weights; 1 "
            "when idle.",
            "model",
            Across.MAX,
        )

    def tokens(self, replica: str, rung: str) -> CachedTokens:
        """Return where tokens of a replica are counted; kept, as it is asked for each request."""
        counted = self._tokens.get((replica, rung))
        if counted is None:
            counted = self._tokens[replica, rung] = CachedTokens(
                self.prompt_tokens.labels(replica, rung),
                self.predicted_cached_tokens.labels(replica, rung),
                self.actual_cached_tokens.labels(replica, rung),
                self.cached_tokens_error.labels(replica, rung, "over"),
                self.cached_tokens_error.labels(replica, rung, "under"),
            )
        return counted

    def forget_tokens(self, replica: str) -> None:
        """Drop what `tokens` keeps of a replica."""
        for key in [key for key in self._tokens if key[0] == replica]:
            del self._tokens[key]


class FleetMetrics(Group):
    """Which replicas there are, and which of them may get requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.state = self._gauge(
            "replica_state",
            "1 for the state that a replica is in, else 0.",
            "replica state",
            Across.MAX,
        )
        self.weight = self._gauge(
            "replica_weight",
            "Share of the work that a replica gets as against its siblings, as configured or as an "
            "operator said.",
            "replica",
            Across.MAX,
        )
        self.changes = self._counter(
            "replica_changes",
            "Changes of a replica's state, by the new state and why.",
            "replica state reason",
        )
        self.discovery_problem = self._gauge(
            "discovery_problem",
            "1 where a discovery cannot know better now (its last good answer stays in force), "
            "else 0; the log and the status say what.",
            "model kind",
            Across.MAX,
        )


class IndexMetrics(Group):
    """What the index knows, and how prompts are found in it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.blocks = self._gauge(
            "index_blocks", "Different blocks in the index.", "tier", Across.SUM
        )
        self.tokenizer_loaded = self._gauge(
            "tokenizer_loaded",
            "1 where the model's tokenizer is loaded, 0 where prompts are routed without ids.",
            "model",
            Across.MIN,
        )
        self.short_cut = self._gauge(
            "tokenizer_short_cut",
            "1 where a short cut gives the reference's token ids and is taken, else 0: `fastokens` "
            "tokenizes, `segments` of texts are kept, the `template` is called directly. The log "
            "line `tokenizer_loaded` says why not.",
            "model part",
            Across.MIN,
        )
        self.token_check = self._counter(
            "token_check",
            "Prompts whose token ids were compared with a replica's /tokenize: `equal`, "
            "`different_` and why (`start`, `tools`, `day`, `count`, `text`), `skipped` where it "
            "cannot tell, `failed` where it did not answer.",
            "model result",
        )
        self.token_trusted = self._gauge(
            "token_trusted",
            "0 where so many comparisons differed that the model's prompts are routed by their "
            "first bytes, until some in a row are equal again.",
            "model",
            Across.MIN,
        )


class ConfigMetrics(Group):
    """What became of the configuration file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.reloads = self._counter(
            "config_reloads",
            "Times that the configuration was loaded again: `applied`, `unchanged`, or `invalid`, "
            "which changes nothing.",
            "result",
        )
        self.valid = self._gauge(
            "config_valid",
            "0 where the file cannot be used, so that the one before runs.",
            "",
            Across.MIN,
        )
        self.needs_restart = self._gauge(
            "config_needs_restart",
            "Keys whose value in the file is not the running one, as only a restart reads them.",
            "",
            Across.MAX,
        )
        self.loaded_at = self._gauge(
            "config_loaded_timestamp_seconds",
            "Unix time of the last load that was valid.",
            "",
            Across.MIN,
        )


class Metrics:
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.request = RequestMetrics(self._registry)
        self.replica = ReplicaMetrics(self._registry)
        self.fleet = FleetMetrics(self._registry)
        self.index = IndexMetrics(self._registry)
        self.events = EventMetrics(self._registry)
        self.config = ConfigMetrics(self._registry)
        self.redis = RedisMetrics(self._registry)
        self.shared_index = SharedIndexMetrics(self._registry)
        self.gateways = GatewayMetrics(self._registry)
        self.shared = SharedCacheMetrics(self._registry)
        self.storage = StorageMetrics(self._registry)
        self.tiers = TierMetrics(self._registry)
        self.prompts = PromptMetrics(self._registry)
        self.background = BackgroundMetrics(self._registry)

    def groups(self) -> tuple[Group, ...]:
        """Return all groups, in the order of docs/metrics.md."""
        return tuple(group for group in vars(self).values() if isinstance(group, Group))

    def forget_gauges(self, label: str, value: str) -> None:
        """Drop the gauges of what is gone; what was counted stays.

        Args:
            label: `replica` or `model`.
            value: Which of them.
        """
        self._forget(label, value, Gauge)

    def forget_counters(self, replica: str) -> None:
        """Drop what was counted of a replica, once everybody has scraped it."""
        self._forget("replica", replica, Counter)
        self.replica.forget_tokens(replica)

    def _forget(self, label: str, value: str, kind: type[Gauge | Counter]) -> None:
        for group in self.groups():
            for metric in vars(group).values():
                if isinstance(metric, kind) and label in metric._labelnames:  # noqa: SLF001 - no accessor
                    metric.remove_by_labels({label: value})

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
