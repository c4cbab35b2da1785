"""The figures of a run, from its outcomes: pure arithmetic."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.demo.client import Answer

# Below two requests a replica one request more or less changes the ratio by half, whatever the
# router does, so such moments say nothing about it.
MIN_IN_FLIGHT_A_REPLICA: Final = 2


@dataclass(frozen=True, slots=True)
class Figures:
    """What one pass of the demo measured at the client. The names are those of build/demo.json.

    Attributes:
        ttft_p50_s: Median time to the first text, seconds; the next two are percentiles of it.
        ttft_p90_s: Nine in ten were faster.
        ttft_p99_s: All but one in a hundred were faster.
        ttft_mean_s: Mean time to the first text, seconds.
        prefix_hit_ratio: Cached over all prompt tokens, as the replicas' usage reports them.
        skew: See `skew`.
        requests_per_s: Requests that ended well, over the time from the first send to the last end.
        errors: Requests that failed in any way.
    """

    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    prefix_hit_ratio: float
    skew: float
    requests_per_s: float
    errors: int


@dataclass(frozen=True, slots=True)
class Interval:
    """One request as a replica held it, in seconds of any one clock."""

    replica: str
    start_s: float
    end_s: float


def figures(answers: Sequence[Answer], num_replicas: int) -> Figures:
    """Return the figures of a run.

    Args:
        answers: At least one.
        num_replicas: Replicas of the fleet, also those that no request went to.
    """
    ttfts = [answer.ttft_s for answer in answers if answer.ttft_s is not None]
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    cached_tokens = sum(answer.cached_tokens for answer in answers)
    errors = sum(answer.failure is not None for answer in answers)
    length_s = max(item.end_s for item in answers) - min(item.sent_s for item in answers)
    held = [
        Interval(answer.replica, answer.sent_s, answer.end_s)
        for answer in answers
        if answer.replica
    ]
    return Figures(
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        ttft_mean_s=sum(ttfts) / len(ttfts) if ttfts else math.nan,
        prefix_hit_ratio=cached_tokens / prompt_tokens if prompt_tokens else 0.0,
        skew=skew(held, num_replicas),
        requests_per_s=(len(answers) - errors) / length_s if length_s else 0.0,
        errors=errors,
    )


def percentile(values: Iterable[float], percent: int) -> float:
    """Return a percentile by nearest rank: the least value that so many of all do not exceed.

    Args:
        values: In any order.
        percent: From 1 to 100.

    Returns:
        One of the values; not-a-number if there are none.
    """
    ordered = sorted(values)
    # In whole numbers: 0.07 * 100 is a little more than 7.
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else math.nan


def skew(intervals: Iterable[Interval], num_replicas: int) -> float:
    """Return how unevenly requests were spread: 1.0 is even, `num_replicas` is all on one.

    At every moment the ratio of the most requests in flight on one replica to the mean over all
    replicas; of these ratios the mean over time. Only moments with at least
    `MIN_IN_FLIGHT_A_REPLICA` requests a replica count, or, in a run that never had so many, all
    moments with any. A request is in flight from when the client sent it until its answer ended.

    Args:
        intervals: Requests, in any order.
        num_replicas: Replicas of the fleet, at least 1, also those without requests.

    Returns:
        The mean ratio; 1.0 without requests.
    """
    changes = [
        (when, step, item.replica)
        for item in intervals
        for when, step in ((item.start_s, 1), (item.end_s, -1))
    ]
    changes.sort()
    in_flight: dict[str, int] = {}
    total, last_s = 0, 0.0
    busy, any_load = _Mean(), _Mean()
    for when, step, replica in changes:
        if total:
            ratio = max(in_flight.values()) * num_replicas / total
            any_load.add(ratio, when - last_s)
            if total >= MIN_IN_FLIGHT_A_REPLICA * num_replicas:
                busy.add(ratio, when - last_s)
        in_flight[replica] = in_flight.get(replica, 0) + step
        total += step
        last_s = when
    return busy.value(any_load.value(1.0))


@dataclass(slots=True)
class _Mean:
    """A mean over time."""

    weighted: float = 0.0
    length_s: float = 0.0

    def add(self, ratio: float, for_s: float) -> None:
        self.weighted += ratio * for_s
        self.length_s += for_s

    def value(self, default: float) -> float:
        return self.weighted / self.length_s if self.length_s else default
