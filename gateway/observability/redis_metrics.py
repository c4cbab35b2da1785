"""The metrics of what several gateways share through Redis."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter

from gateway.observability.declaring import Across, Group
from gateway.observability.histogram import Tally

# From a look-up on the same host (0.1 ms) to a reply that nobody waits for any more.
CALL_BUCKETS_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class CallMetrics:
    """Where one script's calls are counted."""

    calls: Counter
    seconds: Tally


class RedisMetrics(Group):
    """How calls to Redis go."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._of_script: dict[str, CallMetrics] = {}
        self.state = self._gauge(
            "redis_state",
            "1 for the state that a server is in, else 0: `up`, `slow` (look-ups were late again "
            "and again and are not sent), `read_only` (it refuses writes), `down`.",
            "node state",
            Across.MAX,
        )
        self.calls = self._counter(
            "redis_calls", "Runs of scripts that were asked for, by script.", "script"
        )
        self.failures = self._counter(
            "redis_failures",
            "Of these, those without a reply, by why: `timeout`, not sent (`down`, `slow`, "
            "`read_only`, `busy`), `lost`, or the first word of the server's error.",
            "script reason",
        )
        self.seconds = self._histogram(
            "redis_call_seconds",
            "Time until the replies to what was sent together were there, or were given up.",
            "script",
            CALL_BUCKETS_S,
        )

    def of_script(self, name: str) -> CallMetrics:
        """Return where a script's calls are counted; kept, as each look-up asks for it."""
        counted = self._of_script.get(name)
        if counted is None:
            counted = CallMetrics(self.calls.labels(name), self.seconds.labels(name))
            self._of_script[name] = counted
        return counted
