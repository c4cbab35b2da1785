"""Probes replicas: alive or not, and what they say about themselves. Off the request path."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx

from gateway.engines import vllm
from gateway.kvevents.subscriber import Source
from gateway.replicas import facts
from gateway.replicas.registry import Registry, Replica, ReplicaFacts, ReplicaState

T = TypeVar("T")


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


class Prober:
    """Keeps one replica's state and facts current.

    Args:
        open_client: Returns a control-plane client for a replica's TLS; plain HTTP for None.
        registry: Where states change.
        times: Interval, timeout and patience.
        on_learned: Told after each reading of a replica's facts, and whether its engine process is
            a new one since the last.
    """

    def __init__(
        self,
        open_client: Callable[[ssl.SSLContext | None], httpx.AsyncClient],
        registry: Registry,
        times: ProbeTimes,
        on_learned: Callable[[Replica, bool], None],
    ) -> None:
        self._open_client = open_client
        self._registry = registry
        self._times = times
        self._on_learned = on_learned

    async def run(self, replica: Replica) -> None:
        """Probe until cancelled. A replica that never answers costs one request an interval."""
        loop = asyncio.get_running_loop()
        failures = 0
        learn_at = loop.time()
        async with self._open_client(replica.origin.tls) as client:
            line = _Line(client, replica, self._times.timeout_s)
            while True:
                # After a failure, as after a start, it may be another process than before.
                learn = failures > 0 or loop.time() >= learn_at
                problem = await self._probe(line, learn=learn)
                failures = failures + 1 if problem else 0
                if learn and not problem:
                    learn_at = loop.time() + self._times.learn_interval_s
                self._judge(replica, problem, failures)
                await asyncio.sleep(self._times.interval_s)

    def _judge(self, replica: Replica, problem: str | None, failures: int) -> None:
        if problem is None:
            self._registry.probed_well(replica)
        elif replica.state is not ReplicaState.READY:
            self._registry.set_state(replica, replica.state, problem)
        elif failures >= self._times.failures_to_eject:
            self._registry.set_state(replica, ReplicaState.EJECTED, problem)

    async def _probe(self, line: _Line, *, learn: bool) -> str | None:
        """Return None for a healthy replica, else what is wrong in one word."""
        try:
            await line.get(vllm.HEALTH_PATH)
            if learn or line.replica.state is not ReplicaState.READY:
                await self._learn(line)
        except httpx.HTTPStatusError as error:
            return f"status_{error.response.status_code}"
        except httpx.TimeoutException:
            return "timeout"
        except (httpx.HTTPError, OSError) as error:  # an alert comes through httpx as it is
            return "tls" if _is_about_tls(error) else "unreachable"
        return None

    async def _learn(self, line: _Line) -> None:
        """Read what a replica says about itself.

        What it does not say stays unknown: an engine that hides its models is still a replica.
        """
        page = await line.ask(vllm.METRICS_PATH, lambda body: body.decode()) or ""
        block_size, num_blocks = facts.cache_config(page)
        learned = ReplicaFacts(
            models=await line.ask(vllm.MODELS_PATH, facts.served_models) or (),
            block_size=block_size,
            num_blocks=num_blocks,
            started_at=facts.metric_value(page, vllm.START_TIME_METRIC),
            kv_events=await _kv_events(line),
        )
        before, line.replica.facts = line.replica.facts, learned
        restarted = before.started_at is not None and before.started_at != learned.started_at
        self._on_learned(line.replica, restarted)


def _is_about_tls(error: BaseException | None) -> bool:
    # httpx wraps what httpcore wraps what anyio wraps, the last not always as a cause. That TLS
    # wanted to read on when the connection ended is no complaint.
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLWantReadError):
            return True
        error = error.__cause__ or error.__context__
    return False


@dataclass(frozen=True, slots=True)
class _Line:
    """A way to ask one replica."""

    client: httpx.AsyncClient
    replica: Replica
    timeout_s: float

    async def get(self, path: str) -> httpx.Response:
        key = self.replica.upstream_key
        response = await self.client.get(
            self.replica.url + path,
            headers={"authorization": f"Bearer {key}"} if key else None,
            timeout=self.timeout_s,
        )
        return response.raise_for_status()

    async def ask(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse((await self.get(path)).content)
        except (httpx.HTTPStatusError, ValueError):  # not served, or not as vLLM serves it
            return None


async def _kv_events(line: _Line) -> Source | None:
    replica = line.replica
    if replica.configured_events is not None or not replica.read_events:
        return replica.configured_events
    # Since 0.31; before, only the configuration can tell.
    return await line.ask(
        vllm.KV_EVENT_SOURCES_PATH, lambda body: facts.kv_event_source(body, replica.url)
    )
