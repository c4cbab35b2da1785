"""Prices, and which tiers are worth using."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.cost import CostModel, TierCost
from routing.types import PrefixMatch

COST = CostModel(
    prefill_token_s=1e-3,
    prefill_pair_s=0.0,
    l1_latency_s=2e-3,
    l1_token_s=0.1e-3,
    l2_latency_s=20e-3,
    l2_token_s=0.2e-3,
)


def test_the_reference_profile_gives_the_published_times():
    cost = CostModel()
    assert cost.prefill_s(1900, 0) == pytest.approx(0.140, abs=0.01)
    assert cost.l2_latency_s + 1925 * cost.l2_token_s == pytest.approx(0.0465, abs=0.01)


def test_prefill_attends_to_what_is_before_it():
    cost = CostModel(prefill_token_s=0.0, prefill_pair_s=1.0)
    assert cost.prefill_s(10, 0) == 50.0
    assert cost.prefill_s(10, 100) == 1050.0


def test_a_decode_step_costs_sequences_and_resident_tokens():
    cost = CostModel(decode_sequence_s=2.0, decode_kv_token_s=0.5)
    assert cost.decode_step_s(in_flight=3, kv_tokens=10) == 11.0


@pytest.mark.parametrize(
    ("match", "expected", "why"),
    [
        (PrefixMatch(), TierCost(0, 0, 0, 100, 0.0, 0.1), "nothing held: all is prefill"),
        (PrefixMatch(40), TierCost(40, 0, 0, 60, 0.0, 0.06), "L0 is free"),
        (PrefixMatch(0, 40), TierCost(0, 40, 0, 60, 0.006, 0.06), "L1: 2 ms + 40 * 0.1 ms < 40 ms"),
        (
            PrefixMatch(0, 2),
            TierCost(0, 0, 0, 100, 0.0, 0.1),
            "2 tokens from L1 cost more than 2 ms",
        ),
        (PrefixMatch(0, 0, 25), TierCost(0, 0, 0, 100, 0.0, 0.1), "L2 at its break-even: not used"),
        (PrefixMatch(0, 0, 60), TierCost(0, 0, 60, 40, 0.032, 0.04), "L2: 20 ms + 12 ms < 60 ms"),
        (PrefixMatch(10, 20, 60), TierCost(10, 20, 60, 10, 0.036, 0.01), "all three in a row"),
        (
            PrefixMatch(10, 2, 60),
            TierCost(10, 2, 60, 28, 0.0342, 0.028),
            "2.2 ms + 32 ms < 62 ms: L1 alone is not worth it, both are",
        ),
        (
            PrefixMatch(10, 2, 25),
            TierCost(10, 0, 0, 90, 0.0, 0.09),
            "neither is worth it",
        ),
        (
            PrefixMatch(10, 20, 25),
            TierCost(10, 20, 0, 70, 0.004, 0.07),
            "L1 is, L2 behind it is not",
        ),
    ],
)
def test_a_tier_counts_only_where_loading_beats_computing(match, expected, why):
    price = COST.usable(match, 100)
    assert (price.l0_tokens, price.l1_tokens, price.l2_tokens, price.miss_tokens) == (
        expected.l0_tokens,
        expected.l1_tokens,
        expected.l2_tokens,
        expected.miss_tokens,
    ), why
    assert price.load_s == pytest.approx(expected.load_s), why
    assert price.prefill_s == pytest.approx(expected.prefill_s), why


tokens = st.integers(0, 3000)
seconds = st.floats(0.0, 0.1)


@given(tokens, tokens, tokens, seconds, seconds)
def test_what_is_used_is_the_cheapest_of_all_ways(l0, l1, l2, l1_latency_s, l2_latency_s):
    cost = CostModel(l1_latency_s=l1_latency_s, l2_latency_s=l2_latency_s)
    num_tokens = l0 + l1 + l2 + 1
    load_l1_s = l1_latency_s + cost.l1_token_s * l1 if l1 else 0.0
    load_l2_s = l2_latency_s + cost.l2_token_s * l2 if l2 else 0.0
    ways = [
        cost.prefill_s(num_tokens - l0, l0),
        load_l1_s + cost.prefill_s(num_tokens - l0 - l1, l0 + l1),
        load_l1_s + load_l2_s + cost.prefill_s(1, l0 + l1 + l2),
    ]
    price = cost.usable(PrefixMatch(l0, l1, l2), num_tokens)
    assert price.load_s + price.prefill_s == pytest.approx(min(ways))
