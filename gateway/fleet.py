"""Shows the fleet: gauges for a scrape, and the status page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.assembly import Parts
from gateway.kvevents.follow import Followers
from gateway.kvevents.subscriber import KvEventStream
from gateway.l2.showing import shared_status, show_prices, show_shared, show_storage
from gateway.models import Models
from gateway.observability.metrics import Metrics
from gateway.replicas.contradictions import Fact
from gateway.replicas.feeds import Feeds
from gateway.replicas.registry import Registry, Replica
from gateway.replicas.report import FleetReport
from gateway.replicas.state import ReplicaState
from gateway.shared.exchange import Exchange
from routing.load import Loads
from routing.types import ReplicaId

# What was counted of a replica that left is shown for so long: some scrapes, also slow ones. Pods
# have new names every time, and a fleet that scales would fill the page with them.
COUNTERS_KEPT_S = 600.0


class Departed:
    """Forgets what was counted of replicas that left, after `COUNTERS_KEPT_S`.

    Args:
        registry: Tells who is back by then.
        metrics: Of the gateway.
    """

    def __init__(self, registry: Registry, metrics: Metrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._timer_by_id: dict[ReplicaId, asyncio.TimerHandle] = {}

    def left(self, replica_id: ReplicaId) -> None:
        """Note that a replica left."""
        before = self._timer_by_id.pop(replica_id, None)
        if before is not None:
            before.cancel()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(COUNTERS_KEPT_S, self._forget, replica_id)
        self._timer_by_id[replica_id] = timer

    def _forget(self, replica_id: ReplicaId) -> None:
        del self._timer_by_id[replica_id]
        if self._registry.get(replica_id) is None:
            self._metrics.forget_counters(replica_id)


class FleetView:
    """Shows the fleet: gauges for a scrape, and the status page. Reads only."""

    def __init__(
        self,
        parts: Parts,
        models: Callable[[], Models],
        followers: Followers,
        feeds: Feeds,
        exchange: Exchange | None,
    ) -> None:
        self._models = models
        self._registry, self._book, self._index = parts.registry, parts.book, parts.index
        self._loads, self._exchange = parts.loads, exchange
        self._pools, self._admission = parts.shared_pools, parts.admission
        self._followers = followers
        self._feeds = feeds
        self._metrics = parts.metrics
        self._now = parts.now
        self._report = FleetReport(parts.registry, parts.book, parts.loads, parts.now, exchange)
        self._shown: set[tuple[str, str]] = set()

    def page(self) -> bytes:
        """Return the metrics page, with gauges of now."""
        self.refresh()
        return self._metrics.page()

    def refresh(self) -> None:
        """Bring the gauges up to date."""
        metrics, now = self._metrics, self._now()
        metrics.request.admitted.set(self._admission.num_inside)
        metrics.request.queued.set(self._admission.num_waiting)
        replicas = [("replica", str(replica.replica_id)) for replica in self._registry]
        current = {*replicas, *(("model", model.key) for model in self._models())}
        for label, value in self._shown - current:
            metrics.forget_gauges(label, value)
        self._shown = current
        for replica in self._registry:
            load = self._book.snapshot(replica.replica_id, now)
            metrics.replica.in_flight.labels(replica.replica_id).set(load.in_flight)
            metrics.replica.prefill.labels(replica.replica_id).set(load.prefill_s)
            of_all = self._loads.snapshot(replica.replica_id, now)
            metrics.gateways.in_flight.labels(replica.replica_id).set(of_all.in_flight)
            for state in ReplicaState:
                gauge = metrics.fleet.state.labels(replica.replica_id, state.value)
                gauge.set(replica.state is state)
            metrics.fleet.weight.labels(replica.replica_id).set(replica.weight)
            self._refresh_findings(replica)
        for model in self._models():
            metrics.index.tokenizer_loaded.labels(model.key).set(model.preparer.has_tokenizer)
            for part, is_taken in model.short_cuts.items():
                metrics.index.short_cut.labels(model.key, part).set(is_taken)
            metrics.replica.skew.labels(model.key).set(self.skew(model.key, self._book))
            metrics.gateways.skew.labels(model.key).set(self.skew(model.key, self._loads))
            show_shared(metrics.shared, model)
            show_prices(metrics.tiers, model)
            show_storage(metrics.storage, model, self._pools.storage(model.key))
        for (replica_id, tier), number in self._followers.num_removed.items():
            metrics.tiers.removed_blocks.labels(replica_id, tier.value).set(number)
        self._refresh_exchange()
        troubled = {(feed.model_key, feed.kind) for feed in self._feeds if feed.problem}
        metrics.fleet.discovery_problem.clear()  # a new configuration may have fewer of them
        for feed in self._feeds:
            kind = (feed.model_key, feed.kind)
            metrics.fleet.discovery_problem.labels(*kind).set(kind in troubled)
        for tier, num_blocks in self._index.num_blocks().items():
            metrics.index.blocks.labels(tier.value).set(num_blocks)
        for replica_id, stream in self._followers.streams.items():
            self._refresh_stream(replica_id, stream)

    def _refresh_exchange(self) -> None:
        metrics, exchange = self._metrics.gateways, self._exchange
        if exchange is None:
            metrics.live.set(1)
            metrics.owned.set(len(list(self._registry)))
            return
        view = exchange.view()
        metrics.live.set(len(view.gateways))
        metrics.age.set(view.age_s)
        metrics.alone.set(view.is_alone)
        metrics.owned.set(view.num_owned)

    def _refresh_stream(self, replica_id: ReplicaId, stream: KvEventStream) -> None:
        metrics, counts, translator = self._metrics.events, stream.counts, stream.translator
        for gauge, number in (
            (metrics.batches, counts.batches),
            (metrics.gaps, counts.gaps),
            (metrics.missed, counts.missed),
            (metrics.losses, counts.losses),
            (metrics.restarts, counts.restarts),
            (metrics.unreadable, counts.unreadable + counts.skipped_events),
            (metrics.adopted, translator.num_adopted),
            (metrics.known, translator.num_blocks),
            (metrics.complete, stream.is_complete),
        ):
            gauge.labels(replica_id).set(number)
        for reason, num_blocks in translator.skipped.items():
            metrics.skipped.labels(replica_id, reason).set(num_blocks)

    def _refresh_findings(self, replica: Replica) -> None:
        metrics, contradicted = self._metrics.replica, {c.fact for c in replica.contradictions}
        for fact in Fact:
            gauge = metrics.contradiction.labels(replica.replica_id, fact.value)
            gauge.set(fact in contradicted)
        is_shared = replica.shared_address is not None
        metrics.shared_address.labels(replica.replica_id).set(is_shared)
        metrics.distrusted.labels(replica.replica_id).set(not replica.trust.is_trusted)
        if replica.facts.l1_evicted is not None:
            evicted = self._metrics.tiers.l1_evictions.labels(replica.replica_id)
            evicted.set(replica.facts.l1_evicted)
        is_unserved = not replica.shared_trust.is_trusted
        self._metrics.shared.not_served.labels(replica.replica_id).set(is_unserved)
        self._metrics.events.silent.labels(replica.replica_id).set(replica.silence.is_silent)

    def skew(self, model_key: str, counted: Loads) -> float:
        """Return max over mean in-flight across a model's ready replicas; 1 when idle.

        Both relative to weights: a fleet that shares its work as they say has a skew of 1.

        Args:
            model_key: The pool.
            counted: Whose requests: this gateway's, or those of all.
        """
        now = self._now()
        eligible = self._registry.eligible(model_key)
        loads = [counted.snapshot(replica.replica_id, now).in_flight for replica in eligible]
        total = sum(loads)
        if not total:
            return 1.0
        highest = max(load / one.weight for load, one in zip(loads, eligible, strict=True))
        return highest * sum(replica.weight for replica in eligible) / total

    def status(self) -> dict[str, Any]:
        """Return the fleet's state for people."""
        return {
            "models": [
                {
                    "key": model.key,
                    "weight": model.weight,
                    "names": sorted(model.names | model.served.keys()),
                    "policy": model.default_policy,
                    "routed": model.num_routed,
                    "skew": round(self.skew(model.key, self._book), 3),
                    "fleet_skew": round(self.skew(model.key, self._loads), 3),
                    "shared_cache": shared_status(model, self._pools.storage(model.key)),
                    "replicas": [
                        self._report.replica(replica)
                        for replica in self._registry.of_model(model.key)
                    ],
                    "discoveries": [
                        {"kind": feed.kind, "problem": feed.problem}
                        for feed in self._feeds
                        if feed.model_key == model.key
                    ],
                }
                for model in self._models()
            ],
            "index": {tier.value: count for tier, count in self._index.num_blocks().items()},
            "gateways": self._exchange.view().report() if self._exchange is not None else None,
        }
