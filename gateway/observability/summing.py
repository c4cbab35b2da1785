"""One metrics page of several workers' pages.

Each worker is scraped as it is. Gauges are combined by the rule that each metric declares
(`Across`). Counters and histograms add up, and what a worker counted that is no more stays in the
sum, as it was when it was last scraped: nothing that only rises may ever go back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.utils import floatToGoString

from gateway.observability.declaring import Across

_CUMULATIVE = frozenset({"counter", "histogram"})
_REPLICA = re.compile(r'[{,]replica="((?:[^"\\]|\\.)*)"')
_HOW: Mapping[Across, Callable[[Iterable[float]], float]] = {
    Across.SUM: sum,
    Across.MAX: max,
    Across.MIN: min,
}


@dataclass(slots=True)
class Family:
    """One metric on a page.

    Attributes:
        kind: counter, gauge or histogram.
        head: Its HELP and TYPE lines.
        values: By a sample's name and labels, as they stand on the page.
    """

    kind: str
    head: Sequence[str]
    values: dict[str, float] = field(default_factory=dict)


def parse(page: str) -> dict[str, Family]:
    """Read a page that `generate_latest` wrote: families by name, in order.

    When a counter was made is left out: a sum has no such time.
    """
    families: dict[str, Family] = {}
    help_line, current = "", Family("", ())
    for line in page.splitlines():
        if line.startswith("# HELP "):
            help_line = line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            current = Family(kind, (help_line, line))
            if not name.endswith("_created"):
                families[name] = current
        elif line and not line.startswith("#"):
            series, _, number = line.rpartition(" ")
            current.values[series] = float(number)
    return families


class Sum:
    """The sum over workers, which come and go.

    Args:
        rules: How one gauge is made of several, by name; see `gateway.observability.catalog`.
    """

    def __init__(self, rules: Mapping[str, Across]) -> None:
        self._rules = rules
        self._pages: dict[int, dict[str, Family]] = {}  # the last one of each live worker
        self._counted: dict[int, dict[str, dict[str, float]]] = {}  # last values, also vanished
        self._departed: dict[str, dict[str, float]] = {}  # of workers that are no more
        self._heads: dict[str, Family] = {}

    def note(self, worker: int, page: str) -> None:
        """Take the page of a worker.

        Args:
            worker: A number for one run of one worker process, such as its process id.
            page: As it came.
        """
        families = self._pages[worker] = parse(page)
        counted = self._counted.setdefault(worker, {})
        for name, family in families.items():
            self._heads.setdefault(name, Family(family.kind, family.head))
            if family.kind in _CUMULATIVE:
                counted.setdefault(name, {}).update(family.values)

    def gone(self, worker: int) -> None:
        """Forget a worker; what it had counted stays."""
        self._pages.pop(worker, None)
        for name, values in self._counted.pop(worker, {}).items():
            _add(self._departed.setdefault(name, {}), values)

    def page(self) -> str:
        """Return the page of all."""
        self._forget_departed_replicas()
        lines: list[str] = []
        for name, head in self._heads.items():
            values = self._total(name) if head.kind in _CUMULATIVE else self._combined(name)
            lines += head.head
            lines += (f"{series} {_shown(number)}" for series, number in values.items())
        return "\n".join([*lines, ""])

    def _total(self, name: str) -> Mapping[str, float]:
        total = dict(self._departed.get(name, {}))
        for counted in self._counted.values():
            _add(total, counted.get(name, {}))
        return total

    def _combined(self, name: str) -> Mapping[str, float]:
        by_series: dict[str, list[float]] = {}
        for page in self._pages.values():
            for series, number in page[name].values.items() if name in page else ():
                by_series.setdefault(series, []).append(number)
        how = _HOW[self._rules.get(name, Across.SUM)]
        return {series: how(numbers) for series, numbers in by_series.items()}

    def _forget_departed_replicas(self) -> None:
        """Drop what was counted of replicas that no worker shows any more, as each worker does."""
        if not self._pages:
            return
        shown = {
            replica
            for page in self._pages.values()
            for family in page.values()
            for series in family.values
            if (replica := _replica(series)) is not None
        }
        for counted in (self._departed, *self._counted.values()):
            for values in counted.values():
                for series in [one for one in values if _replica(one) not in {None, *shown}]:
                    del values[series]


def _add(total: dict[str, float], values: Mapping[str, float]) -> None:
    for series, number in values.items():
        total[series] = total.get(series, 0.0) + number


def _shown(number: float) -> str:
    return str(floatToGoString(number))  # type: ignore[no-untyped-call]


def _replica(series: str) -> str | None:
    found = _REPLICA.search(series)
    return found[1] if found else None
