"""Shows a model's shared pool and its prices: gauges for a scrape, and the status page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from gateway.l2.pressure import StorageState
from gateway.models import Model
from gateway.observability.shared_metrics import (
    SharedCacheMetrics,
    StorageMetrics,
    TierMetrics,
    show,
)
from routing.cost import CostModel
from routing.types import Tier

# Prices are shown for so many tokens: what a token takes is too small a number to read.
_SHOWN_TOKENS = 1000


def show_prices(metrics: TierMetrics, model: Model) -> None:
    """Bring the gauges of one model's prices up to date."""
    for price, seconds in _prices(model.cost).items():
        metrics.price_s.labels(model.key, price).set(seconds)
    for tier in (Tier.L1, Tier.L2):
        tokens = model.cost.break_even_tokens(tier)
        gauge = metrics.break_even_tokens.labels(model.key, tier.value)
        gauge.set(inf if tokens is None else tokens)


def show_shared(metrics: SharedCacheMetrics, model: Model) -> None:
    """Bring the gauges of one model's pool up to date; without a pool they have no sample."""
    gauges = (
        metrics.down,
        metrics.downs,
        metrics.threads_busy,
        metrics.never_matches,
        metrics.known_chunks,
    )
    told: Sequence[float | None] = (None,) * len(gauges)
    if model.shared is not None:
        health = model.shared.health()
        told = (
            health.down_reason is not None,
            health.num_downs,
            health.threads_busy,
            health.problem is not None,
            health.known_chunks,
        )
    for gauge, number in zip(gauges, told, strict=True):
        show(gauge, model.key, number)


def show_storage(metrics: StorageMetrics, model: Model, state: StorageState | None) -> None:
    """Bring the gauges of a pool's storage up to date; what nobody tells has no sample."""
    told = state or StorageState()
    for gauge, number in (
        (metrics.capacity, told.capacity_bytes),
        (metrics.used, told.used_bytes),
        (metrics.evicted_files, told.evicted_files),
        (metrics.evicted_bytes, told.evicted_bytes),
        (metrics.written_bytes, told.written_bytes),
        (metrics.lost_workers, told.lost_workers),
        (metrics.failed_disks, told.failed_disks),
        (metrics.unreachable, None if state is None else state.unreachable),
    ):
        show(gauge, model.key, number)


def shared_status(model: Model, storage: StorageState | None) -> dict[str, Any] | None:
    """Return a model's shared pool and prices for people; None where it has no pool."""
    cache = model.shared
    if cache is None:
        return None
    health = cache.health()
    return {
        "kind": cache.kind,
        "chunk_tokens": cache.chunk_tokens,
        "down": health.down_reason,
        "problem": health.problem,
        "known_chunks": health.known_chunks,
        **cache.status(),
        "storage": None if storage is None else asdict(storage),
        "prices_s": {name: round(price, 6) for name, price in _prices(model.cost).items()},
        "break_even_tokens": {
            tier.value: model.cost.break_even_tokens(tier) for tier in (Tier.L1, Tier.L2)
        },
    }


def _prices(cost: CostModel) -> dict[str, float]:
    return {
        "prefill_1000": cost.prefill_s(_SHOWN_TOKENS, 0),
        "l1_latency": cost.l1_latency_s,
        "l1_1000": cost.l1_token_s * _SHOWN_TOKENS,
        "l2_latency": cost.l2_latency_s,
        "l2_1000": cost.l2_token_s * _SHOWN_TOKENS,
    }
