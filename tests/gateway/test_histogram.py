"""Our histogram tells the same as prometheus_client's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as TheirHistogram

from gateway.observability.histogram import Histogram

BOUNDS = (0.01, 0.5, 1.0, 320.0)
AMOUNTS = st.one_of(st.sampled_from(BOUNDS), st.integers(0, 10_000).map(lambda n: n / 16))


def lines(registry):
    page = generate_latest(registry).decode().splitlines()
    return [line for line in page if "_created" not in line]


@given(observed=st.lists(st.tuples(st.sampled_from("ab"), AMOUNTS), max_size=30))
def test_the_page_is_the_one_that_the_library_makes(observed):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("h", "What.", ["model"], BOUNDS, ours)
    expected = TheirHistogram("h", "What.", ["model"], buckets=BOUNDS, registry=theirs)
    for label, amount in observed:
        histogram.labels(label).observe(amount)
        expected.labels(label).observe(amount)
    assert lines(ours) == lines(theirs)


def test_a_name_is_registered_once():
    registry = CollectorRegistry()
    Histogram("h", "What.", [], BOUNDS, registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Histogram("h", "What.", [], BOUNDS, registry)
