"""Each policy as a table, and the laws that hold for all of them."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import routing.policies
from routing.cost import CostModel
from routing.policies import POLICIES
from routing.policies.expected_ttft import ExpectedTtft, Profile
from routing.router import LoadBound, Router
from routing.types import (
    Candidate,
    PrefixMatch,
    Reason,
    ReplicaId,
    ReplicaLoad,
    RouteQuery,
    Rung,
)

# A token costs 1 ms to prefill, a sequence 1 ms and a resident token nothing to decode.
COST = CostModel(1e-3, 0.0, 1e-3, 0.0, l2_latency_s=10e-3, l2_token_s=0.1e-3)


def candidate(name, in_flight=0, prefill_s=0.0, kv_tokens=0, l0=0, l1=0, l2=0):
    load = ReplicaLoad(in_flight, prefill_s, kv_tokens)
    return Candidate(ReplicaId(name), load, PrefixMatch(l0, l1, l2))


def order(policy, query, candidates, bound=None):
    bound = bound or LoadBound(load_bound=100.0, slack=1000)  # the bound has tests of its own
    decision = Router(policy, bound).decide(query, candidates, Random(0))
    return [ranked.candidate.replica for ranked in decision.ranked]


@pytest.mark.parametrize(
    ("name", "candidates", "expected", "why"),
    [
        ("cached wins", [candidate("a"), candidate("b", l0=64)], "ba", "64 tokens less to prefill"),
        (
            "a long queue loses",
            [candidate("a"), candidate("b", l0=64, prefill_s=0.2)],
            "ab",
            "0.2 s of queue against 2 * 64 ms of prefill",
        ),
        (
            "a short queue does not",
            [candidate("a"), candidate("b", l0=64, prefill_s=0.1)],
            "ba",
            "0.1 s of queue against 2 * 64 ms",
        ),
        (
            "decoding neighbours cost",
            [candidate("a", in_flight=7), candidate("b", l0=64)],
            "ba",
            "cached and idle",
        ),
        (
            "enough of them lose",
            [candidate("a"), candidate("b", in_flight=7, l0=64)],
            "ab",
            "20 steps * 7 ms against 2 * 64 ms",
        ),
        (
            "L2 is worth its price",
            [candidate("a", l2=80), candidate("b", l2=80, l0=0, in_flight=1)],
            "ab",
            "both reach the pool, one is idle",
        ),
        (
            "L0 beats L2",
            [candidate("a", l2=80), candidate("b", l0=80)],
            "ba",
            "18 ms to load against nothing",
        ),
    ],
)
def test_expected_ttft(name, candidates, expected, why):
    query = RouteQuery(num_prompt_tokens=100)
    assert order(ExpectedTtft(cost=COST), query, candidates) == list(expected), (name, why)


def test_expected_ttft_adds_up_its_terms():
    policy = ExpectedTtft(cost=COST)
    loaded = candidate("a", in_flight=2, prefill_s=0.5, l0=16, l2=64)
    scores = policy.score(RouteQuery(100), [loaded], Random(0))
    terms = {name: pytest.approx(column[0]) for name, column in scores.terms.items()}
    assert terms == {"queue_s": 0.5, "load_s": 0.0164, "prefill_s": 0.04, "decode_s": 0.04}
    assert scores.values == pytest.approx([0.5964])


def test_balanced_multiplies_by_the_batch():
    policy = ExpectedTtft(cost=COST, profile=Profile.BALANCED, fixed_s=0.01)
    loaded = candidate("a", in_flight=2, prefill_s=0.5, l0=90)
    scores = policy.score(RouteQuery(100), [loaded], Random(0))
    assert scores.values == pytest.approx([(0.5 + 0.02 + 0.01) * 3])


@given(
    st.integers(1, 4000),
    st.integers(0, 250),
    st.integers(0, 250),
    st.sampled_from(Profile),
    st.floats(0.0, 0.2),
    st.floats(0.0, 4.0),
)
def test_a_replica_is_never_dearer_for_what_it_holds_in_gpu_memory(
    num_tokens, pool_blocks, own_blocks, profile, l2_latency_s, weight
):
    """Also where it makes the rest of what the pool has too short to be worth its latency."""
    most = (num_tokens - 1) // 16
    pool, own = 16 * min(pool_blocks, most), 16 * min(own_blocks, most)
    cost = CostModel(l2_latency_s=l2_latency_s)
    policy = ExpectedTtft(cost=cost, profile=profile, prefill_weight=weight)
    fleet = [candidate("cold", l2=pool), candidate("warm", l0=own, l2=max(0, pool - own))]
    cold, warm = policy.score(RouteQuery(num_tokens), fleet, Random(0)).values
    assert warm <= cold + 1e-9


@pytest.mark.parametrize(
    ("kind", "query", "candidates", "expected", "why"),
    [
        (
            "prefix_affinity",
            RouteQuery(100),
            [candidate("a", 0, l0=16), candidate("b", 9, l0=32), candidate("c", 1, l0=32)],
            "cba",
            "the longest match, then the load",
        ),
        (
            "prefix_affinity",
            RouteQuery(100),
            [candidate("a", 1, l2=96), candidate("b", 0, l0=16, l2=80)],
            "ba",
            "what every replica can load is no affinity",
        ),
        (
            "least_loaded",
            RouteQuery(100),
            [candidate("a", 3, l0=96), candidate("b", 1), candidate("c", 2)],
            "bca",
            "load alone",
        ),
        (
            "round_robin",
            RouteQuery(100, sequence=4),
            [candidate("c"), candidate("a", 50), candidate("b")],
            "bca",
            "turn 4 of 3 replicas is the second by name",
        ),
    ],
)
def test_order(kind, query, candidates, expected, why):
    assert order(POLICIES[kind](), query, candidates) == list(expected), why


def test_power_of_two_takes_the_less_loaded_of_two_draws():
    fleet = [candidate("a", 5), candidate("b", 1), candidate("c", 9)]
    firsts = {
        Router(POLICIES["power_of_two"]()).decide(RouteQuery(1), fleet, Random(seed)).replica
        for seed in range(50)
    }
    assert firsts == {"a", "b"}, "c is never the better of two"


@pytest.mark.parametrize(
    ("kind", "key"), [("consistent_hash", "affinity_key"), ("session", "session_key")]
)
def test_hash_policies_stick_and_move_little_when_a_replica_leaves(kind, key):
    fleet = [candidate(name) for name in "abcdefgh"]
    policy = POLICIES[kind]()

    def owner(value, candidates):
        return order(policy, RouteQuery(1, Rung.HASHED, **{key: value}), candidates)[0]

    before = {value: owner(value, fleet) for value in range(400)}
    without_h = {value: owner(value, fleet[:-1]) for value in range(400)}
    moved = [v for v in before if before[v] != without_h[v]]
    assert all(before[v] == "h" for v in moved)
    assert all(30 <= list(before.values()).count(name) <= 70 for name in "abcdefgh")


@pytest.mark.parametrize(
    ("kind", "query", "used", "why"),
    [
        ("expected_ttft", RouteQuery(1, Rung.PRECISE), "expected_ttft", "ids are known"),
        ("expected_ttft", RouteQuery(1, Rung.PREDICTED), "expected_ttft", "ids are known"),
        ("expected_ttft", RouteQuery(1, Rung.HASHED, affinity_key=7), "consistent_hash", "no ids"),
        ("expected_ttft", RouteQuery(1, Rung.LOAD), "least_loaded", "nothing repeats"),
        (
            "prefix_affinity",
            RouteQuery(1, Rung.HASHED, affinity_key=7),
            "consistent_hash",
            "no ids",
        ),
        ("session", RouteQuery(1, session_key=3), "session", "a session"),
        ("session", RouteQuery(1, affinity_key=7), "consistent_hash", "no session"),
        ("session", RouteQuery(1), "least_loaded", "nothing at all"),
        ("round_robin", RouteQuery(1, Rung.LOAD), "round_robin", "needs nothing"),
    ],
)
def test_a_lower_rung_replaces_a_policy_that_cannot_rank(kind, query, used, why):
    decision = Router(POLICIES[kind]()).decide(query, [candidate("a")], Random(0))
    assert (decision.policy, decision.rung) == (used, query.rung), why


LOADS = st.lists(st.integers(0, 40), min_size=1, max_size=20)
QUERIES = st.builds(
    RouteQuery,
    num_prompt_tokens=st.integers(1, 5000),
    rung=st.sampled_from(Rung),
    affinity_key=st.none() | st.integers(0, 2**64 - 1),
    session_key=st.none() | st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 1000),
)
BOUNDED = [kind for kind, policy in POLICIES.items() if policy.bounded]


@given(st.sampled_from(BOUNDED), LOADS, QUERIES, st.floats(1.0, 3.0), st.integers(0, 5), st.data())
def test_no_bounded_policy_ever_exceeds_the_cap(kind, loads, query, bound, slack, data):
    fleet = [
        candidate(f"r{i:02}", load, l0=data.draw(st.integers(0, 300)) * 16)
        for i, load in enumerate(loads)
    ]
    decision = Router(POLICIES[kind](), LoadBound(bound, slack)).decide(query, fleet, Random(1))
    assert decision.chosen.candidate.load.in_flight + 1 <= decision.load_cap
    assert not decision.chosen.over_cap
    assert sorted(decision.order) == sorted(c.replica for c in fleet)
    assert decision.order[0] == decision.replica


@given(st.sampled_from(BOUNDED), st.integers(1, 12), st.integers(1, 200), st.floats(1.0, 2.0))
def test_one_hot_prefix_never_lifts_a_replica_over_the_bound(kind, replicas, requests, bound):
    """All requests want the same replica and none of them ends."""
    names = [f"r{i:02}" for i in range(replicas)]
    in_flight = dict.fromkeys(names, 0)
    router = Router(POLICIES[kind](), LoadBound(bound, slack=2))
    query = RouteQuery(4000, affinity_key=1, session_key=1)
    for number in range(requests):
        fleet = [candidate(n, in_flight[n], l0=3984 if n == "r00" else 0) for n in names]
        in_flight[router.decide(query, fleet, Random(number)).replica] += 1
        mean = (number + 1) / replicas
        assert max(in_flight.values()) <= max(-(-bound * mean // 1), mean + 2)


def test_300_replicas_with_30_requests_of_which_a_quarter_share_a_prefix():
    """Case D165: factor * mean is far below 1, and nothing may pile up or look full."""
    for bound in (1.25, 1.0):
        in_flight = {f"r{i:03}": 0 for i in range(300)}
        router = Router(ExpectedTtft(), LoadBound(bound, slack=0))
        for number in range(30):
            hot = number % 4 == 0
            fleet = [
                candidate(name, load, l0=4000 if hot and name == "r007" else 0)
                for name, load in in_flight.items()
            ]
            decision = router.decide(RouteQuery(4096), fleet, Random(number))
            assert decision.load_cap == 1
            in_flight[decision.replica] += 1
        assert max(in_flight.values()) == 1


@pytest.mark.parametrize(
    ("loads", "bound", "cap", "chosen"),
    [([7], 1.25, 10, "r0"), ([0, 1], 1.25, 2, "r1"), ([0, 1], 1.0, 1, "r0")],
)
def test_small_fleets_under_the_bound(loads, bound, cap, chosen):
    """The rest of case D165: one replica; and two with 0 and 1 in flight, the busy one warm."""
    fleet = [candidate(f"r{i}", load) for i, load in enumerate(loads)]
    fleet[-1] = candidate(f"r{len(loads) - 1}", loads[-1], l0=4000)
    decision = Router(ExpectedTtft(), LoadBound(bound, slack=0)).decide(
        RouteQuery(4096), fleet, Random(0)
    )
    assert (decision.load_cap, decision.replica) == (cap, chosen)


def test_reasons():
    router = Router(ExpectedTtft(cost=COST), LoadBound(1.0, 0))
    warm_but_full = [candidate("a"), candidate("b", 1, l0=96)]
    for fleet, reason in (
        ([candidate("a")], Reason.ONLY),
        ([candidate("a"), candidate("b", l0=96)], Reason.BEST),
        (warm_but_full, Reason.SPILL),
    ):
        assert router.decide(RouteQuery(100), fleet, Random(0)).reason is reason


def test_equal_replicas_share_the_work():
    fleet = [candidate(name) for name in "abcd"]
    rng = Random(0)
    chosen = [Router(ExpectedTtft()).decide(RouteQuery(9), fleet, rng).replica for _ in range(400)]
    assert all(60 <= chosen.count(name) <= 140 for name in "abcd")


def test_equal_inputs_give_equal_decisions():
    fleet = [candidate(name, i % 3, l0=16 * i) for i, name in enumerate("abcdef")]
    for kind, policy in POLICIES.items():
        query = RouteQuery(200, affinity_key=5, session_key=6)
        one, two = (Router(policy()).decide(query, fleet, Random(3)) for _ in range(2))
        assert one == two, kind


def test_every_policy_file_is_registered():
    files = {path.stem for path in Path(routing.policies.__file__).parent.glob("*.py")}
    assert files - {"__init__", "base"} == set(POLICIES)
    assert len(set(POLICIES)) == 7


def test_no_candidates_is_the_callers_business():
    with pytest.raises(ValueError, match="no candidates"):
        Router(ExpectedTtft()).decide(RouteQuery(1), [], Random(0))
