"""What is noted about one request while it runs, and what becomes of it: metrics and a log line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import Counter

from gateway.errors import GatewayError
from gateway.l2.base import SharedPrefix
from gateway.models import Choice
from gateway.observability.histogram import Tally
from gateway.observability.lessons import learn_prices
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.prompt.prepare import Prompt
from gateway.proxy.usage import Usage, UsageReader
from routing.trust import AGREE_RATIO
from routing.types import NO_MATCH, Decision, PrefixMatch, ReplicaId, Rung

# As nginx writes it: the client closed the connection before the answer was whole.
CLIENT_LEFT_STATUS = 499


@dataclass(slots=True)
class RequestRecord:
    """Notes on one request. Times are monotonic seconds.

    Attributes:
        request_id: The client's X-Request-Id, or ours.
        path: The API's path, from the list of known ones.
        model: The key of its pool.
        status: What the client got; 0 while nothing was sent.
        matches: What the index said, also of replicas that decisions do not count on.
        shared: What the model's pool holds of the prompt; None without a pool.
        shared_late: Whether the pool's answer did not come in time.
        asks_usage: Whether we asked the engine for usage where the client did not.
    """

    request_id: str
    path: str
    received_at: float
    model: str = "unknown"
    choice: Choice | None = None
    stream: bool = False
    status: int = 0
    decision: Decision | None = None
    prompt: Prompt | None = None
    replica: ReplicaId | None = None
    retries: list[tuple[ReplicaId, str]] = field(default_factory=list)
    error: str | None = None
    client_left: bool = False
    lookup_timed_out: bool = False
    lookup_failed: bool = False
    matches: Mapping[ReplicaId, PrefixMatch] = field(default_factory=dict)
    shared: SharedPrefix | None = None
    shared_late: bool = False
    asks_usage: bool = False
    usage: UsageReader = field(default_factory=UsageReader)
    prepare_s: float | None = None
    lookup_s: float | None = None
    decide_s: float | None = None
    ttft_s: float | None = None
    decided_at: float = 0.0
    _step_at: float = 0.0

    def asked(self, choice: Choice, stream: bool, now: float) -> None:
        """The model is known, and its pool is chosen."""
        self.choice, self.model, self.stream = choice, choice.model.key, stream
        self._step_at = now

    def prepared(self, prompt: Prompt, now: float) -> None:
        """The prompt was rendered and tokenized, or not."""
        self.prompt = prompt
        self.prepare_s, self._step_at = now - self._step_at, now

    def looked_up(self, matches: Mapping[ReplicaId, PrefixMatch], now: float) -> None:
        """The index answered, or its deadline passed."""
        self.matches = matches
        self.lookup_s, self._step_at = now - self._step_at, now

    def decided(self, decision: Decision | None, now: float) -> None:
        """The decision was made and reserved."""
        self.decision, self.decided_at = decision, now
        self.decide_s, self._step_at = now - self._step_at, now

    def tried(self, replica: ReplicaId) -> None:
        """The request is being sent to a replica."""
        self.replica = replica

    def retried(self, replica: ReplicaId, reason: str) -> None:
        """A replica could not be reached; the request moves on."""
        self.retries.append((replica, reason))

    def began(self, status: int, now: float) -> None:
        """The first byte of the answer's body is here."""
        self.status = status
        self.ttft_s = now - self.received_at

    def failed(self, error: GatewayError) -> None:
        """The request ended without a whole answer of a replica."""
        self.error = error.reason
        if not self.status:
            self.status = error.status


@dataclass(frozen=True, slots=True)
class _Ended:
    """Where requests of one model, path and status are counted."""

    number: Counter
    duration: Tally


@dataclass(frozen=True, slots=True)
class _Decided:
    """Where decisions of one kind are counted, and what became of them."""

    number: Counter
    ttft: Tally


class Word(Protocol):
    """Listens to what engines say of their answers; see `gateway.replicas.word.EngineWord`."""

    def cached_tokens(self, replica_id: ReplicaId, usage: Usage) -> int | None:
        """Return how many tokens an engine says were cached; None where it does not say."""
        ...

    def heard(self, replica_id: ReplicaId, expected_tokens: int, cached_tokens: int) -> None:
        """Take what an engine said of one request."""
        ...

    def heard_shared(self, replica_id: ReplicaId, expected_tokens: int, served_tokens: int) -> bool:
        """Take how much of what was expected of the shared pool it served.

        Returns:
            Whether that says something of the pool, and not only of the replica.
        """
        ...

    def served(self, replica_id: ReplicaId, num_prompt_tokens: int, expected_tokens: int) -> None:
        """Take a request that was served."""
        ...


class Observer:
    """Turns the record of an ended request into metrics and one log line.

    The metrics of each set of labels are kept here, as bounded as the labels are: to ask
    prometheus_client for eight of them anew, which locks, checks and copies each time, is a tenth
    of what a short request costs.

    Args:
        log: None to write no line a request.
        word: Hears what engines say they had cached.
        now: Monotonic seconds.
    """

    def __init__(
        self, metrics: Metrics, log: EventLog | None, word: Word, now: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._log = log
        self._word = word
        self._now = now
        step = metrics.request.step
        self._steps = (step.labels("prepare"), step.labels("lookup"), step.labels("decide"))
        self._ended: dict[tuple[str, str, int], _Ended] = {}
        self._decided: dict[tuple[str, str, str, str, str], _Decided] = {}
        self._problems: dict[tuple[str, str], Counter] = {}

    def ended(self, record: RequestRecord) -> None:
        """Observe the end of a request."""
        duration_s = self._now() - record.received_at
        status = CLIENT_LEFT_STATUS if record.client_left else record.status
        usage = record.usage.usage()
        self._count(record, status, duration_s)
        if record.decision is not None:
            self._count_decision(record, record.decision, usage)
        self._count_trouble(record)
        if self._log is not None:
            self._log.info("request", **_fields(record, status, duration_s, usage))

    def _count(self, record: RequestRecord, status: int, duration_s: float) -> None:
        metrics, key = self._metrics.request, (record.model, record.path, status)
        ended = self._ended.get(key)
        if ended is None:
            number = metrics.ended.labels(record.model, record.path, str(status))
            ended = self._ended[key] = _Ended(number, metrics.duration.labels(record.model))
        ended.number.inc()
        ended.duration.observe(duration_s)
        for step, seconds in zip(
            self._steps, (record.prepare_s, record.lookup_s, record.decide_s), strict=True
        ):
            if seconds is not None:
                step.observe(seconds)
        if record.prompt is not None and record.prompt.problem is not None:
            self._problem(record.model, record.prompt.problem).inc()
        if record.prompt is not None and record.prompt.is_dated:
            self._metrics.prompts.dated.labels(record.model).inc()

    def _count_decision(
        self, record: RequestRecord, decision: Decision, usage: Usage | None
    ) -> None:
        metrics = self._metrics.request
        match = decision.match_of(record.replica or decision.replica)
        tier = match.deepest_tier or "none"
        key = (record.model, decision.policy, decision.rung, decision.reason, tier)
        decided = self._decided.get(key)
        if decided is None:
            decided = self._decided[key] = _Decided(
                metrics.decisions.labels(*key[:-1]), metrics.ttft.labels(record.model, tier)
            )
        decided.number.inc()
        if record.ttft_s is not None:
            decided.ttft.observe(record.ttft_s)
        if record.prompt is not None and record.prompt.packed_tokens is not None:
            self._hear(record, decision.rung, match.total_tokens, usage)
        elif usage is not None and usage.cached_tokens is not None and record.replica is not None:
            self._count_cached(record.replica, decision.rung, 0, usage, usage.cached_tokens)

    def _hear(
        self, record: RequestRecord, rung: Rung, predicted_tokens: int, usage: Usage | None
    ) -> None:
        """Compare what was expected of a replica with its own word."""
        replica, prompt = record.replica, record.prompt
        if replica is None or prompt is None or record.status != 200:
            return
        believed = record.matches.get(replica, NO_MATCH)
        self._word.served(replica, prompt.num_tokens, believed.total_tokens)
        if prompt.body.skips_cache:
            usage = None  # what the engine has cached played no part
        actual = None if usage is None else self._word.cached_tokens(replica, usage)
        if usage is not None and actual is not None:
            self._count_cached(replica, rung, predicted_tokens, usage, actual)
            self._word.heard(replica, believed.total_tokens - believed.l2_tokens, actual)
            learn_prices(record, actual)
        self._count_shared(record, replica, believed, actual)

    def _count_shared(
        self, record: RequestRecord, replica: ReplicaId, believed: PrefixMatch, actual: int | None
    ) -> None:
        """Tell the model's pool what became of what it promised."""
        prefix, choice, prompt = record.shared, record.choice, record.prompt
        cache = None if choice is None else choice.model.shared
        if prefix is None or choice is None or cache is None or prompt is None:
            return
        metrics = self._metrics.shared
        result = "hit" if prefix.num_chunks else "miss"
        metrics.lookups.labels(record.model, "late" if record.shared_late else result).inc()
        promised = choice.model.cost.usable(believed, prompt.num_tokens).l2_tokens
        own = believed.total_tokens - believed.l2_tokens
        if actual is not None and promised and actual >= AGREE_RATIO * own:
            served = min(promised, max(0, actual - own))
            metrics.predicted_tokens.labels(replica).inc(promised)
            metrics.served_tokens.labels(replica).inc(served)
            counts = self._word.heard_shared(replica, promised, served)
            num_missing = (promised - served) // prefix.chunk_tokens
            if counts and num_missing:
                metrics.refuted_chunks.labels(record.model).inc(num_missing)
                cache.refute(prefix, own + served)
        # What it did not find it has computed, and writes now.
        cache.computed(prefix.chunks)
        if choice.model.host is not None:
            choice.model.host.used(replica, prefix.chunks)

    def _count_cached(
        self, replica: ReplicaId, rung: Rung, predicted: int, usage: Usage, actual: int
    ) -> None:
        cached = self._metrics.replica.tokens(replica, rung.value)
        cached.prompt.inc(usage.prompt_tokens)
        cached.predicted.inc(predicted)
        cached.actual.inc(actual)
        error = cached.over if predicted > actual else cached.under
        error.inc(abs(predicted - actual))

    def _problem(self, model: str, problem: str) -> Counter:
        counter = self._problems.get((model, problem))
        if counter is None:
            counter = self._metrics.request.prepare_problems.labels(model, problem)
            self._problems[model, problem] = counter
        return counter

    def _count_trouble(self, record: RequestRecord) -> None:
        metrics = self._metrics.request
        if record.lookup_timed_out:
            metrics.lookup_timeouts.inc()
        if record.lookup_failed:
            metrics.lookup_failures.inc()
        for replica, reason in record.retries:
            metrics.retries.labels(replica, reason).inc()
        if record.error is not None:
            metrics.failures.labels(record.model, record.error).inc()
        if record.choice is not None and record.choice.passed_over is not None:
            metrics.pool_failovers.labels(record.choice.passed_over.key).inc()


def _fields(
    record: RequestRecord, status: int, duration_s: float, usage: Usage | None
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "request_id": record.request_id,
        "path": record.path,
        "model": record.model,
        "status": status,
        "stream": record.stream,
        "duration_s": round(duration_s, 6),
    }
    if record.ttft_s is not None:
        fields["ttft_s"] = round(record.ttft_s, 6)
    if record.choice is not None:
        fields |= _choice_fields(record.choice)
    if record.decision is not None:
        fields |= _decision_fields(record, record.decision)
    elif record.replica is not None:
        fields["replica"] = record.replica
    if usage is not None:
        fields |= {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        }
    if record.retries:
        fields["retries"] = [f"{replica}:{reason}" for replica, reason in record.retries]
    if record.error is not None:
        fields["error"] = record.error
    return fields


def _choice_fields(choice: Choice) -> dict[str, Any]:
    """Return what the pool's key does not say: only a few requests have any of it."""
    fields: dict[str, Any] = {}
    if choice.offer.name != choice.model.key:
        fields["requested"] = choice.offer.name
    if choice.offer.rule is not None:
        fields["rule"] = choice.offer.rule.label
    if choice.passed_over is not None:
        fields["passed_over"] = choice.passed_over.key
    return fields


def _decision_fields(record: RequestRecord, decision: Decision) -> dict[str, Any]:
    match = decision.match_of(record.replica or decision.replica)
    fields: dict[str, Any] = {
        "replica": record.replica,
        "policy": decision.policy,
        "rung": decision.rung.value,
        "reason": decision.reason.value,
        "load_cap": decision.load_cap,
        "in_flight": decision.chosen.candidate.load.in_flight,
        "predicted_tokens": {
            "L0": match.l0_tokens,
            "L1": match.l1_tokens,
            "L2": match.l2_tokens,
        },
    }
    if record.prompt is not None:
        fields["num_prompt_tokens"] = record.prompt.num_tokens
        if record.prompt.problem is not None:
            fields["problem"] = record.prompt.problem
    return fields
