"""Probes replicas: alive or not, and when to ask what they are. Off the request path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.background import Background, Work
from gateway.config.models import HealthConfig
from gateway.engines import vllm
from gateway.errors import UpstreamError
from gateway.observability.logging import EventLog
from gateway.replicas.asking import Line, ProbeTransport, Refused, what_is_wrong
from gateway.replicas.learning import Learner
from gateway.replicas.registry import Registry, Replica, ReplicaState

# Between the first probes of replicas that are found together: 300 of them start within a second,
# and one alone at once.
FIRST_PROBES_APART_S = 0.003


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """How often and how patiently replicas are probed.

    Attributes:
        interval_s: Between two probes of one replica.
        timeout_s: For each request of a probe.
        failures_to_eject: Failed probes in a row before a ready replica is ejected.
        learn_interval_s: Between two readings of what a healthy replica says about itself. A
            scrape of an engine is heavy, so not every probe has one.
    """

    interval_s: float = 1.0
    timeout_s: float = 2.0
    failures_to_eject: int = 3
    learn_interval_s: float = 10.0


def probe_times(health: HealthConfig) -> ProbeTimes:
    """Return the times that a configuration states."""
    return ProbeTimes(
        health.interval_s, health.timeout_s, health.failures_to_eject, health.metrics_interval_s
    )


class Prober:
    """Keeps replicas' states and facts current.

    Args:
        open_transport: Returns a transport for one replica's probes. Each has its own, because a
            kept connection that was lost is how a restart shows.
        registry: Where states change.
        times: Interval, timeout and patience; a reload puts others in their place.
        on_learned: Told after each reading of a replica's facts, and whether its engine process is
            a new one since the last.
        background: Notes crashes.
        log: Told of replicas that never answer.
    """

    def __init__(
        self,
        open_transport: Callable[[], ProbeTransport],
        registry: Registry,
        times: ProbeTimes,
        on_learned: Callable[[Replica, bool], None],
        background: Background,
        log: EventLog,
    ) -> None:
        self._open_transport = open_transport
        self._registry = registry
        self.times = times
        self._on_learned = on_learned
        self._background = background
        self._log = log
        self._next_first_at = 0.0

    async def run(self, replica: Replica) -> None:
        """Probe until cancelled or gone. One that never answers costs one request an interval."""
        loop = asyncio.get_running_loop()
        first_at = max(loop.time(), self._next_first_at)
        self._next_first_at = first_at + FIRST_PROBES_APART_S
        await asyncio.sleep(first_at - loop.time())
        transport = self._open_transport()
        watch = _Watch(Line(transport, replica, self.times.timeout_s))
        crashes = self._background.crashes(Work.PROBE, replica.replica_id)
        try:
            while replica.state is not ReplicaState.GONE:
                begun_at = loop.time()
                watch.line.timeout_s = self.times.timeout_s
                # A bug of ours changes nothing about the replica, nor what we remember of it.
                await crashes.survive(self._look(watch, begun_at))
                await asyncio.sleep(max(0.0, begun_at + self.times.interval_s - loop.time()))
        finally:
            transport.close()

    async def _look(self, watch: _Watch, now: float) -> None:
        """Probe and judge."""
        replica = watch.line.replica
        problem = await self._probe(watch, now)
        if replica.state is ReplicaState.GONE:
            return  # what was learned made it leave
        watch.failures = watch.failures + 1 if problem else 0
        self._judge(replica, problem, watch.failures)

    def _judge(self, replica: Replica, problem: str | None, failures: int) -> None:
        if problem is None:
            self._registry.probed_well(replica)
        else:
            enough = failures >= self.times.failures_to_eject
            self._registry.probed_badly(replica, problem, enough=enough)
            never_ready = replica.state is ReplicaState.STARTING
            if never_ready and failures == self.times.failures_to_eject:
                self._tell(replica, problem)

    def _tell(self, replica: Replica, problem: str) -> None:
        # Its state does not change, so nobody else tells: a wrong port would be silent.
        state = replica.state.value
        self._log.warning("replica_state", replica=replica.replica_id, state=state, reason=problem)

    async def _probe(self, watch: _Watch, now: float) -> str | None:
        """Return None for a healthy replica, else what is wrong in one word."""
        try:
            await watch.line.get(vllm.HEALTH_PATH)
            watch.answered()
            if now >= watch.learn_at:
                await self._learn(watch, now)
        except (Refused, TimeoutError, UpstreamError, OSError) as error:
            watch.doubt()
            return what_is_wrong(error)
        return None

    async def _learn(self, watch: _Watch, now: float) -> None:
        restarted, whole = await watch.learner.learn(maybe_restarted=watch.maybe_restarted)
        # A page that did not come is not asked for at once: it may be what keeps the engine busy.
        watch.maybe_restarted = not whole
        watch.learn_at = now + self.times.learn_interval_s
        self._on_learned(watch.line.replica, restarted)


class _Watch:
    """What probing one replica remembers.

    Attributes:
        failures: Failed probes in a row.
        learn_at: When it is time to read its facts again, by the loop's clock.
        maybe_restarted: Nothing proves that it is still the process whose facts we know.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self.learner = Learner(line)
        self.failures = 0
        self.learn_at = 0.0
        self.maybe_restarted = True
        self._num_lapsed = 0
        self._ejected_until = 0.0

    def doubt(self) -> None:
        """It may be another process from now on: learn with the next answer."""
        self.maybe_restarted = True
        self.learn_at = 0.0

    def answered(self) -> None:
        """Note an answer, and whether what it came over or requests in between show a new start.

        A process that ends takes its connections with it: as long as a kept one answers, it is the
        same process. This needs no page of metrics, which are heavy work for an engine.
        """
        if self.line.num_lapsed != self._num_lapsed:
            self._num_lapsed = self.line.num_lapsed
            self.doubt()
        ejected_until = self.line.replica.ejected_until
        if ejected_until != self._ejected_until:  # by requests, since the last answer
            self._ejected_until = ejected_until
            self.doubt()
