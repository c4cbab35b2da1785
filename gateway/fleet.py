"""From the configuration to the parts that know the fleet: replicas, models, gauges, status."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gateway.config.models import GatewayConfig, ModelConfig
from gateway.index.memory import MemoryIndex
from gateway.kvevents.follow import Followers
from gateway.kvevents.subscriber import Source
from gateway.models import Model, Models, build_model, model_key
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.prompt.prepare import Preparer
from gateway.prompt.tokenizer import PromptTokenizer, TokenizerUnavailable
from gateway.proxy.transport import Origin
from gateway.replicas.discovery.base import Found
from gateway.replicas.registry import Registry, Replica, ReplicaState
from routing.load import LoadBook
from routing.types import ReplicaId


def replica_builder(
    model: ModelConfig, tls: ssl.SSLContext
) -> Callable[[ReplicaId, Found], Replica]:
    """Return how a replica of a model is made of what a discovery found.

    Args:
        model: Its section of the configuration; a listed replica has its events there.
        tls: How to speak TLS to those with an https address.
    """
    listed = {replica.url: replica for replica in model.replicas}

    def build(replica_id: ReplicaId, found: Found) -> Replica:
        section = listed.get(found.url)
        events = section.kv_events if section is not None else "auto"
        source = None
        if not isinstance(events, str):
            source = Source(events.endpoint, events.replay_endpoint, events.topic)
        return Replica(
            replica_id=replica_id,
            model_key=model_key(model),
            url=found.url,
            origin=Origin.of(found.url, tls),
            upstream_key=model.api_key.get_secret_value() if model.api_key else None,
            configured_block_size=model.block_size,
            configured_events=source,
            read_events=events != "off",
        )

    return build


async def build_models(
    config: GatewayConfig, executor: ThreadPoolExecutor, metrics: Metrics, log: EventLog
) -> Models:
    """Load every model's tokenizer, in threads, and build the models.

    A tokenizer that cannot be loaded is one line in the log and a gauge at 0: its model is routed
    without token ids.
    """
    loop = asyncio.get_running_loop()
    models: list[Model] = []
    for model in config.models:
        tokenizer = None
        if model.tokenizer is not None:
            load = loop.run_in_executor(executor, PromptTokenizer.load, model.tokenizer)
            try:
                tokenizer = await load
            except TokenizerUnavailable as problem:
                log.warning("tokenizer_unavailable", model=model_key(model), problem=str(problem))
        metrics.index.tokenizer_loaded.labels(model_key(model)).set(tokenizer is not None)
        prepare = config.prepare
        preparer = Preparer(
            tokenizer, executor, prepare.timeout_s, prepare.inline_bytes, prepare.max_bytes
        )
        models.append(build_model(config, model, preparer))
    return Models(models, config.rules)


class FleetView:
    """Shows the fleet: gauges for a scrape, and the status page. Reads only."""

    def __init__(
        self,
        models: Models,
        registry: Registry,
        book: LoadBook,
        index: MemoryIndex,
        followers: Followers,
        metrics: Metrics,
        now: Callable[[], float],
    ) -> None:
        self._models = models
        self._registry = registry
        self._book = book
        self._index = index
        self._followers = followers
        self._metrics = metrics
        self._now = now
        self._shown: set[ReplicaId] = set()

    def refresh(self) -> None:
        """Bring the gauges up to date."""
        metrics, now = self._metrics, self._now()
        current = {replica.replica_id for replica in self._registry}
        for replica_id in self._shown - current:
            metrics.forget_replica(replica_id)
        self._shown = current
        for replica in self._registry:
            load = self._book.snapshot(replica.replica_id, now)
            metrics.replica.in_flight.labels(replica.replica_id).set(load.in_flight)
            metrics.replica.prefill.labels(replica.replica_id).set(load.prefill_s)
            for state in ReplicaState:
                gauge = metrics.replica.state.labels(replica.replica_id, state.value)
                gauge.set(replica.state is state)
        for model in self._models:
            metrics.replica.skew.labels(model.key).set(self.skew(model.key))
        for tier, num_blocks in self._index.num_blocks().items():
            metrics.index.blocks.labels(tier.value).set(num_blocks)
        for replica_id, stream in self._followers.streams.items():
            metrics.index.batches.labels(replica_id).set(stream.counts.batches)
            metrics.index.gaps.labels(replica_id).set(stream.counts.gaps)
            metrics.index.losses.labels(replica_id).set(stream.counts.losses)
            metrics.index.restarts.labels(replica_id).set(stream.counts.restarts)
            for reason, num_blocks in stream.translator.skipped.items():
                metrics.index.skipped.labels(replica_id, reason).set(num_blocks)

    def skew(self, model_key: str) -> float:
        """Return max over mean in-flight across a model's ready replicas; 1 when idle."""
        now = self._now()
        eligible = self._registry.eligible(model_key)
        loads = [self._book.snapshot(replica.replica_id, now).in_flight for replica in eligible]
        total = sum(loads)
        return max(loads) * len(loads) / total if total else 1.0

    def status(self) -> dict[str, Any]:
        """Return the fleet's state for people."""
        now = self._now()
        return {
            "models": [
                {
                    "key": model.key,
                    "names": sorted(model.names | model.served.keys()),
                    "policy": model.default_policy,
                    "routed": model.num_routed,
                    "skew": round(self.skew(model.key), 3),
                    "replicas": [
                        self._replica_status(replica, now)
                        for replica in self._registry.of_model(model.key)
                    ],
                }
                for model in self._models
            ],
            "index": {tier.value: count for tier, count in self._index.num_blocks().items()},
        }

    def _replica_status(self, replica: Replica, now: float) -> dict[str, Any]:
        load = self._book.snapshot(replica.replica_id, now)
        return {
            "id": replica.replica_id,
            "url": replica.url,
            "state": replica.state.value,
            "reason": replica.state_reason,
            "for_s": round(now - replica.since, 1),
            "in_flight": load.in_flight,
            "outstanding_prefill_s": round(load.prefill_s, 3),
            "block_size": replica.block_size,
            "num_blocks": replica.facts.num_blocks,
            "follows_events": replica.follows_events,
        }
