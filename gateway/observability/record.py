"""What is noted about one request while it runs, and what becomes of it: metrics and a log line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from gateway.errors import GatewayError
from gateway.observability.logging import EventLog
from gateway.observability.metrics import AnyMetric, Metrics
from gateway.prompt.prepare import Prompt
from gateway.proxy.usage import Usage, UsageReader
from routing.types import Decision, ReplicaId

# As nginx writes it: the client closed the connection before the answer was whole.
CLIENT_LEFT_STATUS = 499

M = TypeVar("M", bound=AnyMetric)


@dataclass(slots=True)
class RequestRecord:
    """Notes on one request. Times are monotonic seconds.

    Attributes:
        request_id: The client's X-Request-Id, or ours.
        path: The API's path, from the list of known ones.
        status: What the client got; 0 while nothing was sent.
    """

    request_id: str
    path: str
    received_at: float
    model: str = "unknown"
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
    usage: UsageReader = field(default_factory=UsageReader)
    step_s: dict[str, float] = field(default_factory=dict)
    ttft_s: float | None = None
    _step_at: float = 0.0

    def asked(self, model: str, stream: bool, now: float) -> None:
        """The model is known."""
        self.model, self.stream = model, stream
        self._step_at = now

    def prepared(self, prompt: Prompt, now: float) -> None:
        """The prompt was rendered and tokenized, or not."""
        self.prompt = prompt
        self._step("prepare", now)

    def looked_up(self, now: float) -> None:
        """The index answered, or its deadline passed."""
        self._step("lookup", now)

    def decided(self, decision: Decision | None, now: float) -> None:
        """The decision was made and reserved."""
        self.decision = decision
        self._step("decide", now)

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

    def _step(self, name: str, now: float) -> None:
        self.step_s[name] = now - self._step_at
        self._step_at = now


class Observer:
    """Turns the record of an ended request into metrics and one log line.

    Args:
        log: None to write no line a request.
        now: Monotonic seconds.
    """

    def __init__(self, metrics: Metrics, log: EventLog | None, now: Callable[[], float]) -> None:
        self._metrics = metrics
        self._log = log
        self._now = now
        self._children: dict[tuple[object, tuple[str, ...]], object] = {}

    def ended(self, record: RequestRecord) -> None:
        """Observe the end of a request."""
        duration_s = self._now() - record.received_at
        status = CLIENT_LEFT_STATUS if record.client_left else record.status
        usage = record.usage.usage()
        self._count(record, status, duration_s, usage)
        if self._log is not None:
            self._log.info("request", **_fields(record, status, duration_s, usage))

    def _count(
        self, record: RequestRecord, status: int, duration_s: float, usage: Usage | None
    ) -> None:
        metrics = self._metrics.request
        self._of(metrics.ended, record.model, record.path, str(status)).inc()
        self._of(metrics.duration, record.model).observe(duration_s)
        for step, seconds in record.step_s.items():
            self._of(metrics.step, step).observe(seconds)
        if record.prompt is not None and record.prompt.problem is not None:
            self._of(metrics.prepare_problems, record.model, record.prompt.problem).inc()
        if record.lookup_timed_out:
            metrics.lookup_timeouts.inc()
        if record.lookup_failed:
            metrics.lookup_failures.inc()
        for replica, reason in record.retries:
            self._of(metrics.retries, replica, reason).inc()
        if record.error is not None:
            self._of(metrics.failures, record.model, record.error).inc()
        if record.decision is not None:
            self._count_decision(record, record.decision, usage)

    def _count_decision(
        self, record: RequestRecord, decision: Decision, usage: Usage | None
    ) -> None:
        metrics = self._metrics.request
        reason, rung = decision.reason.value, decision.rung.value
        self._of(metrics.decisions, record.model, decision.policy, rung, reason).inc()
        match = decision.match_of(record.replica or decision.replica)
        if record.ttft_s is not None:
            tier = match.deepest_tier
            name = tier.value if tier else "none"
            self._of(metrics.ttft, record.model, name).observe(record.ttft_s)
        if usage is not None and usage.cached_tokens is not None and record.replica is not None:
            cached, replica = self._metrics.replica, record.replica
            self._of(cached.prompt_tokens, replica).inc(usage.prompt_tokens)
            self._of(cached.predicted_cached_tokens, replica).inc(match.total_tokens)
            self._of(cached.actual_cached_tokens, replica).inc(usage.cached_tokens)

    def _of(self, metric: M, *labels: str) -> M:
        """Return a metric's child for some labels.

        Kept here because prometheus_client's own look-up locks, checks and copies each time: eight
        of them are a tenth of what a short request costs. As bounded as the labels are.
        """
        key = (metric, labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return cast("M", child)


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
    if record.decision is not None:
        fields |= _decision_fields(record, record.decision)
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
