"""Prices follow what is observed: within bounds, robustly, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.calibration import Calibrator, Observed, PriceLine
from routing.cost import CostModel
from routing.types import ReplicaLoad

IDLE = ReplicaLoad()
TOKENS = (512, 1024, 2048, 3072, 4096)
finite = st.floats(0.0, 1e6, allow_nan=False)


def answer(first_token_s, num_tokens, l0=0, l1=0, l2=0, load=IDLE):
    return Observed(first_token_s, num_tokens, l0, l1, l2, load)


def line():
    return PriceLine(3e-3, 22.6e-6, (256.0, 4096.0))


@given(factor=st.floats(0.05, 50.0))
def test_a_tier_that_stays_slower_or_faster_than_thought_is_learned(factor):
    learned, prior = line(), line()
    for number in range(400):
        x = TOKENS[number % len(TOKENS)]
        learned.observe(x, factor * prior.at(x))
    for x in TOKENS:
        assert learned.at(x) == pytest.approx(factor * prior.at(x), rel=0.35, abs=1.5e-3)


def test_a_latency_of_its_own_is_told_from_a_slope():
    learned = line()
    for number in range(400):
        x = TOKENS[number % len(TOKENS)]
        learned.observe(x, 0.14 + 29e-6 * x)
    assert learned.base == pytest.approx(0.14, rel=0.1)
    assert learned.slope == pytest.approx(29e-6, rel=0.2)


@given(seconds=finite, x=st.sampled_from(TOKENS))
def test_one_outlier_moves_a_price_by_less_than_a_factor_of_two(seconds, x):
    learned, prior = line(), line()
    learned.observe(x, seconds)
    assert prior.at(x) / 2 < learned.at(x) < 2 * prior.at(x)


@given(st.lists(st.tuples(st.integers(1, 100_000), finite), max_size=60))
def test_whatever_is_observed_prices_stay_within_bounds(observed):
    learned = line()
    for x, seconds in observed:
        learned.observe(x, seconds)
        assert 0.0 <= learned.base <= 10.0
        assert 0.0 <= learned.slope <= 0.01


@given(
    st.lists(
        st.builds(
            Observed,
            finite,
            st.integers(1, 10**6),
            st.integers(0, 10**5),
            st.integers(0, 10**5),
            st.integers(0, 10**5),
            st.builds(ReplicaLoad, st.integers(0, 9), st.floats(0, 1), st.integers(0, 9)),
        ),
        max_size=40,
    )
)
def test_no_observation_makes_a_price_negative_or_infinite(observed):
    calibrator = Calibrator(CostModel())
    for seen in observed:
        calibrator.observe(seen)
        cost = calibrator.cost
        assert 0.0 <= cost.prefill_s(1000, 0) <= 50 * CostModel().prefill_s(1000, 0) + 1e-9
        assert cost.prefill_token_s > 0.0
        assert cost.l2_latency_s + cost.l2_token_s * 1000 < 30.0


def test_without_loads_prices_stay_as_configured():
    calibrator = Calibrator(CostModel())
    for _ in range(100):
        assert not calibrator.observe(answer(5.0, 2000))
    assert calibrator.cost == CostModel()


def test_a_slow_engine_and_a_slow_pool_are_told_apart():
    prior = CostModel()
    calibrator = Calibrator(prior)
    for number in range(300):
        n = TOKENS[number % len(TOKENS)]
        calibrator.observe(answer(0.008 + 3 * prior.prefill_s(n, 0), n))
        rest_s = 0.008 + 3 * prior.prefill_s(100, n)
        calibrator.observe(answer(rest_s + 0.05 + 40e-6 * n, n + 100, l2=n))
    cost = calibrator.cost
    assert cost.prefill_s(2000, 0) == pytest.approx(3 * prior.prefill_s(2000, 0), rel=0.15)
    assert cost.l2_latency_s + cost.l2_token_s * 2048 == pytest.approx(0.05 + 0.082, rel=0.15)
    assert cost.l1_latency_s == prior.l1_latency_s, "nothing was loaded from there"


def test_a_busy_replica_teaches_nothing():
    calibrator = Calibrator(CostModel())
    for load in (ReplicaLoad(in_flight=5), ReplicaLoad(in_flight=1, prefill_s=0.5)):
        for _ in range(50):
            assert not calibrator.observe(answer(9.0, 2100, l2=2048, load=load))
    assert calibrator.cost == CostModel()


def test_a_tier_that_recovers_is_cheap_again():
    calibrator = Calibrator(CostModel())
    for _ in range(200):
        calibrator.observe(answer(3.0, 2100, l2=2048))
    slow_s = calibrator.cost.l2_latency_s + calibrator.cost.l2_token_s * 2048
    for _ in range(300):
        calibrator.observe(answer(0.07, 2100, l2=2048))
    fast_s = calibrator.cost.l2_latency_s + calibrator.cost.l2_token_s * 2048
    assert slow_s > 1.0
    assert fast_s < 0.1
