"""From samples to ratios and goals. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from loadtests.bench.measure import Sample
from loadtests.bench.scenarios import MAX_EVENTS_PER_READ, Scenario

SamplesByGateway = Mapping[str, Sequence[Sample]]
"""For each gateway its samples of one scenario, one a round."""


@dataclass(frozen=True, slots=True)
class Row:
    """One gateway in one scenario; None where there is nothing to tell.

    Attributes:
        cpu_us: CPU microseconds per request, or per event of a stream; the median round.
        ratio: The same as a multiple of the baseline's, round by round; the median of these.
        requests_per_s: Whole answers a second.
        p50_ms: Median time to a whole answer.
        p99_ms: The same at the 99th percentile.
        events_per_read: 1.0 where each event reached the client as it came; None for no stream.
        errors: Over all rounds.
    """

    scenario: str
    gateway: str
    cpu_us: float | None
    ratio: float | None
    requests_per_s: float | None
    p50_ms: float | None
    p99_ms: float | None
    events_per_read: float | None
    errors: int


def cost_us(sample: Sample, scenario: Scenario) -> float | None:
    """Return CPU microseconds per event of a stream, else per request; None for no work done."""
    count = sample.events if scenario.events else sample.done
    return 1e6 * sample.cpu_s / count if count else None


def ratio(
    samples: Sequence[Sample], baseline: Sequence[Sample], scenario: Scenario
) -> float | None:
    """Return the median over the rounds of one gateway's cost by the baseline's.

    Rounds are compared one by one, as neighbours in time share the machine's moods.
    """
    found = []
    for ours, theirs in zip(samples, baseline, strict=False):
        ours_us, theirs_us = cost_us(ours, scenario), cost_us(theirs, scenario)
        if ours_us is not None and theirs_us:
            found.append(ours_us / theirs_us)
    return median(found) if found else None


def rows(scenario: Scenario, samples: SamplesByGateway, baseline: str) -> list[Row]:
    """Return the rows of one scenario, a gateway each, in the order given."""
    return [
        _row(scenario, gateway, found, samples.get(baseline, ()))
        for gateway, found in samples.items()
    ]


def _row(
    scenario: Scenario, gateway: str, samples: Sequence[Sample], baseline: Sequence[Sample]
) -> Row:
    costs = [cost for sample in samples if (cost := cost_us(sample, scenario)) is not None]
    reads = sum(sample.reads for sample in samples)
    per_read = sum(sample.events for sample in samples) / reads if reads else None
    return Row(
        scenario=scenario.name,
        gateway=gateway,
        cpu_us=median(costs) if costs else None,
        ratio=ratio(samples, baseline, scenario),
        requests_per_s=median([sample.done / sample.seconds for sample in samples]),
        p50_ms=_median_ms([sample.p50_s for sample in samples]),
        p99_ms=_median_ms([sample.p99_s for sample in samples]),
        events_per_read=per_read if scenario.events else None,
        errors=sum(sample.errors for sample in samples),
    )


def _median_ms(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return 1e3 * median(known) if known else None


def missed_goals(row: Row, scenario: Scenario) -> list[str]:
    """Return a line for every goal that a row of ours misses.

    A ratio that could not be measured, as the baseline is not here, misses nothing.
    """
    missed = []
    if row.ratio is not None and scenario.max_ratio is not None and row.ratio > scenario.max_ratio:
        missed.append(
            f"{scenario.name}: CPU per {scenario.unit} at most {scenario.max_ratio} times the "
            f"baseline's; it was {row.ratio:.2f}"
        )
    if row.events_per_read is not None and row.events_per_read > MAX_EVENTS_PER_READ:
        missed.append(f"{scenario.name}: events/read 1.0; it was {row.events_per_read:.2f}")
    if row.cpu_us is None:
        missed.append(f"{scenario.name}: no request was answered")
    if row.errors:
        missed.append(f"{scenario.name}: no errors; there were {row.errors}")
    return missed
