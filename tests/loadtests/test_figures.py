"""Percentiles, skew and the other figures, on literal histories."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.demo.client import Answer, Failure
from loadtests.demo.figures import Interval, figures, percentile, skew


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7], 99, 7),
        ([3, 1, 2], 50, 2),
        ([1, 2], 50, 1),
        ([1, 2], 51, 2),
        (range(1, 101), 99, 99),
        (range(1, 102), 99, 100),
        (range(1, 101), 7, 7),
        (range(1, 101), 100, 100),
        (range(1, 101), 1, 1),
    ],
)
def test_a_percentile_is_the_value_at_the_nearest_rank(values, percent, expected):
    assert percentile(values, percent) == expected


@pytest.mark.parametrize(("count", "above"), [(1, 0), (99, 0), (100, 1), (200, 2)])
def test_one_in_a_hundred_lies_above_the_99th_percentile(count: int, above: int):
    values = range(count)
    assert sum(value > percentile(values, 99) for value in values) == above


def test_a_percentile_of_nothing_is_not_a_number():
    assert math.isnan(percentile([], 50))


def held(*rows: tuple[str, float, float]) -> list[Interval]:
    return [Interval(*row) for row in rows]


@pytest.mark.parametrize(
    ("name", "intervals", "num_replicas", "expected"),
    [
        ("nothing ran", [], 4, 1.0),
        ("even", held(("a", 0, 1), ("a", 0, 1), ("b", 0, 1), ("b", 0, 1)), 2, 1.0),
        ("all on one of two", held(*[("a", 0, 1)] * 4), 2, 2.0),
        ("3 against 1", held(*[("a", 0, 1)] * 3, ("b", 0, 1)), 2, 1.5),
        # 1 s of 3:1 (1.5), then 1 s of 2:2 (1.0): a mean over time.
        (
            "changes over time",
            held(*[("a", 0, 2)] * 2, ("a", 0, 1), ("b", 0, 2), ("b", 1, 2)),
            2,
            1.25,
        ),
        # From 1 s on only one request is in flight: that would be 2.0, and says nothing.
        ("quiet times do not count", held(*[("a", 0, 1)] * 2, ("b", 0, 1), ("b", 0, 9)), 2, 1.0),
        ("never busy: any load counts", held(("a", 0, 1), ("b", 0, 1)), 4, 2.0),
        ("one ends where one begins", held(("a", 0, 1), ("a", 1, 2)), 1, 1.0),
    ],
)
def test_skew_is_the_mean_over_time_of_most_to_mean(name, intervals, num_replicas, expected):
    assert skew(intervals, num_replicas) == pytest.approx(expected), name


requests = st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(0, 10), st.floats(0.001, 5)).map(
    lambda drawn: Interval(drawn[0], drawn[1], drawn[1] + drawn[2])
)


@given(st.lists(requests))
def test_skew_lies_between_one_and_the_number_of_replicas(intervals):
    assert 1.0 - 1e-9 <= skew(intervals, 3) <= 3.0 + 1e-9


@given(st.lists(requests), st.randoms(use_true_random=False))
def test_skew_does_not_depend_on_the_order_of_the_requests(intervals, rng):
    shuffled = rng.sample(intervals, len(intervals))
    assert skew(shuffled, 3) == pytest.approx(skew(intervals, 3))


def test_the_figures_of_a_run():
    answers = [
        Answer(0.0, 1.0, 2.0, 200, "a", " x", 100, 0, 1),
        Answer(0.0, 3.0, 4.0, 200, "b", " x", 300, 200, 1),
        Answer(1.0, None, 5.0, 200, "b", failure=Failure.BROKEN),
    ]
    result = figures(answers, num_replicas=2)
    assert (result.ttft_p50_s, result.ttft_mean_s) == (1.0, 2.0)
    assert result.prefix_hit_ratio == 0.5
    assert result.requests_per_s == pytest.approx(2 / 5)
    assert result.errors == 1
