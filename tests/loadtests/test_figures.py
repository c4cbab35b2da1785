"""Percentiles, skew and the other figures, on literal histories."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.demo.client import Answer, Failure
from loadtests.demo.figures import Interval, figures, percentile, skew


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([1.0, 2.0], 0.5, 1.5),
        ([0.0, 10.0], 0.9, 9.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 1.0, 5.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.0, 1.0),
    ],
)
def test_percentiles_interpolate(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected)


def test_a_percentile_of_nothing_is_not_a_number():
    assert math.isnan(percentile([], 0.5))


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
    assert (result.ttft_p50_s, result.ttft_mean_s) == (2.0, 2.0)
    assert result.prefix_hit_ratio == 0.5
    assert result.requests_per_s == pytest.approx(2 / 5)
    assert result.errors == 1
