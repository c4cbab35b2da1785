"""What a shared pool adds to what replicas hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.cost import CostModel
from routing.credit import credited, with_shared
from routing.types import NO_MATCH, PrefixMatch, Tier

# (name, match, tokens in the pool, expected)
CASES = [
    ("nothing anywhere", NO_MATCH, 0, NO_MATCH),
    ("the pool alone", NO_MATCH, 512, PrefixMatch(l2_tokens=512)),
    ("behind GPU memory", PrefixMatch(64, 0, 0, 64), 512, PrefixMatch(64, 0, 448, 64)),
    ("behind host memory", PrefixMatch(64, 192, 0), 512, PrefixMatch(64, 192, 256)),
    ("GPU memory reaches further", PrefixMatch(640), 512, PrefixMatch(640)),
    ("events told more", PrefixMatch(0, 0, 768), 512, PrefixMatch(0, 0, 768)),
]


@pytest.mark.parametrize(("match", "shared", "expected"), [case[1:] for case in CASES])
def test_credit(match, shared, expected):
    assert credited(match, shared) == expected


def test_every_replica_reaches_the_pool():
    matches = {"a": PrefixMatch(l0_tokens=256)}
    merged = with_shared(matches, [("a", 16), ("b", 16), ("c", 32)], 512, 513)
    assert merged == {
        "a": PrefixMatch(256, 0, 256),
        "b": PrefixMatch(0, 0, 512),
        "c": PrefixMatch(0, 0, 512),
    }


def test_what_holds_only_the_pools_share_is_one_object_so_that_it_is_priced_once():
    merged = with_shared({}, [("a", 16), ("b", 16)], 512, 600)
    assert merged["a"] is merged["b"]


@given(
    st.builds(PrefixMatch, *[st.integers(0, 50).map(lambda n: n * 16)] * 3),
    st.integers(0, 2000),
    st.integers(1, 3000),
)
def test_credit_never_takes_away_and_never_covers_the_last_token(match, shared, num_tokens):
    merged = with_shared({"a": match}, [("a", 16)], shared, num_tokens).get("a", NO_MATCH)
    assert merged.total_tokens >= match.total_tokens
    if merged.total_tokens > match.total_tokens:
        assert merged.total_tokens < num_tokens
        assert merged.total_tokens % 16 == 0 or merged.total_tokens == num_tokens - 1


@pytest.mark.parametrize(
    ("num_prompt_tokens", "expected", "why"),
    [
        (513, 512, "one token is left to compute"),
        (512, 511, "the last one is computed again, and its block is kept all the same"),
        (500, 499, "the pool holds a longer prompt"),
    ],
)
def test_an_engine_takes_all_but_the_last_token(num_prompt_tokens, expected, why):
    merged = with_shared({}, [("a", 32)], 512, num_prompt_tokens)
    assert merged["a"].l2_tokens == expected, why


# (prefill a token, a pair, L2 latency, L2 a token, tokens)
BREAK_EVEN = [
    (70e-6, 0.0, 6.97e-3, 0.0, 100),
    (0.31e-3, 0.0, 140e-3, 29e-6, 499),
    (10e-6, 0.0, 1e-3, 20e-6, None),
    (10e-6, 4e-9, 0.0, 20e-6, 5000),
]


@pytest.mark.parametrize(("token_s", "pair_s", "latency_s", "load_s", "expected"), BREAK_EVEN)
def test_break_even_is_where_loading_begins_to_beat_computing(
    token_s, pair_s, latency_s, load_s, expected
):
    cost = CostModel(
        prefill_token_s=token_s, prefill_pair_s=pair_s, l2_latency_s=latency_s, l2_token_s=load_s
    )
    assert cost.break_even_tokens(Tier.L2) == expected
    if expected is not None:
        more, less = PrefixMatch(l2_tokens=expected + 2), PrefixMatch(l2_tokens=expected - 2)
        assert cost.usable(more, 10_000).l2_tokens == expected + 2
        assert cost.usable(less, 10_000).l2_tokens == 0
