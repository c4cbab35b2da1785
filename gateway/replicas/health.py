"""Probes replicas: alive or not, and what they say about themselves. Off the request path."""

from __future__ import annotations

import asyncio
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
        client: The control-plane client; its limits and timeouts are ours to set.
        registry: Where states change.
        times: Interval, timeout and patience.
        on_learned: Told after each reading of a replica's facts, and whether its engine process is
            a new one since the last.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        registry: Registry,
        times: ProbeTimes,
        on_learned: Callable[[Replica, bool], None],
    ) -> None:
        self._client = client
        self._registry = registry
        self._times = times
        self._on_learned = on_learned

    async def run(self, replica: Replica) -> None:
        """Probe until cancelled. A replica that never answers costs one request an interval."""
        loop = asyncio.get_running_loop()
        failures = 0
        learn_at = loop.time()
        while True:
            # After a failure, as after a start, it may be another process than before.
            learn = failures > 0 or loop.time() >= learn_at
            problem = await self._probe(replica, learn=learn)
            failures = failures + 1 if problem else 0
            if learn and not problem:
                learn_at = loop.time() + self._times.learn_interval_s
            self._judge(replica, problem, failures)
            await asyncio.sleep(self._times.interval_s)

    def _judge(self, replica: Replica, problem: str | None, failures: int) -> None:
        if problem is None:
            self._registry.set_state(replica, ReplicaState.READY, "healthy")
        elif replica.state is not ReplicaState.READY:
            self._registry.set_state(replica, replica.state, problem)
        elif failures >= self._times.failures_to_eject:
            self._registry.set_state(replica, ReplicaState.EJECTED, problem)

    async def _probe(self, replica: Replica, *, learn: bool) -> str | None:
        """Return None for a healthy replica, else what is wrong in one word."""
        try:
            await self._get(replica, vllm.HEALTH_PATH)
            if learn or replica.state is not ReplicaState.READY:
                await self._learn(replica)
        except httpx.HTTPStatusError as error:
            return f"status_{error.response.status_code}"
        except httpx.TimeoutException:
            return "timeout"
        except httpx.HTTPError:
            return "unreachable"
        return None

    async def _learn(self, replica: Replica) -> None:
        """Read what a replica says about itself.

        What it does not say stays unknown: an engine that hides its models is still a replica.
        """
        page = await self._ask(replica, vllm.METRICS_PATH, lambda body: body.decode())
        block_size, num_blocks = facts.cache_config(page or "")
        before, replica.facts = (
            replica.facts,
            ReplicaFacts(
                models=await self._ask(replica, vllm.MODELS_PATH, facts.served_models) or (),
                block_size=block_size,
                num_blocks=num_blocks,
                started_at=facts.metric_value(page or "", vllm.START_TIME_METRIC),
                kv_events=await self._kv_events(replica),
            ),
        )
        restarted = before.started_at is not None and before.started_at != replica.facts.started_at
        self._on_learned(replica, restarted)

    async def _kv_events(self, replica: Replica) -> Source | None:
        if replica.configured_events is not None or not replica.read_events:
            return replica.configured_events
        return await self._ask(
            replica,
            vllm.KV_EVENT_SOURCES_PATH,  # since 0.31; before, only the configuration can tell
            lambda body: facts.kv_event_source(body, replica.url),
        )

    async def _ask(self, replica: Replica, path: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse((await self._get(replica, path)).content)
        except (httpx.HTTPStatusError, ValueError):  # not served, or not as vLLM serves it
            return None

    async def _get(self, replica: Replica, path: str) -> httpx.Response:
        key = replica.upstream_key
        response = await self._client.get(
            replica.url + path,
            headers={"authorization": f"Bearer {key}"} if key else None,
            timeout=self._times.timeout_s,
        )
        return response.raise_for_status()
