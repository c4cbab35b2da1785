"""The load bound's arithmetic."""

from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.bound import load_cap


@pytest.mark.parametrize(
    ("total", "replicas", "bound", "slack", "cap", "why"),
    [
        (0, 1, 1.5, 0, 2, "one replica: ceil(1.5 * 1)"),
        (0, 300, 1.25, 0, 1, "300 replicas, no traffic: never below 1"),
        (29, 300, 1.25, 0, 1, "30 requests over 300 replicas: the mean is 0.1"),
        (29, 300, 1.25, 4, 4, "and with slack: floor(0.1 + 4)"),
        (1, 2, 1.0, 0, 1, "factor 1.0, loads 0 and 1: the idle one must take it"),
        (2, 2, 1.0, 0, 2, "factor 1.0, loads 1 and 1: either may take it"),
        (99, 10, 1.5, 4, 15, "mean 10: the factor is above the slack"),
        (9, 10, 1.5, 4, 5, "mean 1: the slack is above the factor"),
        (19, 3, 1.05, 0, 7, "1.05 * 20 / 3 is 7, and in floats a little more"),
    ],
)
def test_load_cap(total, replicas, bound, slack, cap, why):
    assert load_cap(total, replicas, bound, slack) == cap, why


@given(st.integers(0, 10_000), st.integers(1, 300), st.integers(100, 400), st.integers(0, 20))
def test_floats_neither_allow_nor_take_a_request(total, replicas, percent, slack):
    mean = Fraction(total + 1, replicas)
    exact = max(ceil(Fraction(percent, 100) * mean), floor(mean + slack), 1)
    assert load_cap(total, replicas, percent / 100, slack) == exact


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=300),
    st.floats(1.0, 4.0),
    st.integers(0, 10),
)
def test_the_least_loaded_replica_is_always_under_the_cap(loads, bound, slack):
    assert min(loads) + 1 <= load_cap(sum(loads), len(loads), bound, slack)


@pytest.mark.parametrize(
    ("total", "replicas", "bound", "slack", "message"),
    [
        (0, 0, 1.5, 4, "num_replicas"),
        (0, 1, 0.99, 4, "load_bound"),
        (-1, 1, 1.5, 4, "negative"),
        (0, 1, 1.5, -1, "negative"),
    ],
)
def test_nonsense_is_refused(total, replicas, bound, slack, message):
    with pytest.raises(ValueError, match=message):
        load_cap(total, replicas, bound, slack)
