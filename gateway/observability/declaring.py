"""How metrics are declared: in groups, each with its type, labels and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.observability.histogram import Histogram

AnyMetric = Counter | Gauge | Histogram
"""Any metric of ours."""


class Across(StrEnum):
    """How one gauge is made of those of several workers of one host.

    Counters and histograms always add up.
    """

    SUM = "sum"  # each worker has its part: what is in flight
    MAX = "max"  # all look at the same thing, and one that sees trouble is right
    MIN = "min"  # all look at the same thing, and it is well where it is well for all


class Group:
    """Declares metrics in one registry, all under the same prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._across: dict[str, Across] = {}

    def across(self, metric: AnyMetric) -> Across:
        """Return how one value is made of several workers'."""
        return self._across.get(next(iter(metric.describe())).name, Across.SUM)

    def _counter(self, name: str, text: str, labels: str) -> Counter:
        return Counter(f"warmroute_{name}", text, labels.split(), registry=self._registry)

    def _gauge(self, name: str, text: str, labels: str, across: Across) -> Gauge:
        self._across[f"warmroute_{name}"] = across
        return Gauge(f"warmroute_{name}", text, labels.split(), registry=self._registry)

    def _histogram(self, name: str, text: str, labels: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"warmroute_{name}", text, labels.split(), buckets, self._registry)
