"""Weights: equal ones change nothing, and others share the work in their proportion."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.bound import load_cap
from routing.policies import POLICIES
from routing.router import LoadBound, Router
from routing.types import Candidate, PrefixMatch, ReplicaId, ReplicaLoad, RouteQuery, Rung

UNBOUNDED = LoadBound(load_bound=1000.0, slack=1000)
WEIGHTS = st.floats(0.01, 100.0)
QUERIES = st.builds(
    RouteQuery,
    num_prompt_tokens=st.integers(1, 5000),
    rung=st.sampled_from(Rung),
    affinity_key=st.none() | st.integers(0, 2**64 - 1),
    session_key=st.none() | st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 1000),
)
LOADS = st.builds(ReplicaLoad, st.integers(0, 40), st.floats(0.0, 5.0), st.integers(0, 100_000))


@st.composite
def fleets(draw, weights=WEIGHTS):
    return [
        Candidate(
            ReplicaId(f"r{i:02}"),
            draw(LOADS),
            PrefixMatch(l0_tokens=16 * draw(st.integers(0, 300))),
            draw(weights),
        )
        for i in range(draw(st.integers(1, 12)))
    ]


def weighted(**weight_by_name):
    return [Candidate(ReplicaId(name), weight=weight) for name, weight in weight_by_name.items()]


def serve(router, fleet, requests, query=None):
    """Return how many of `requests`, none of which ends, each replica got."""
    in_flight, rng = Counter(), Random(0)
    for number in range(requests):
        loaded = [replace(c, load=ReplicaLoad(in_flight[c.replica])) for c in fleet]
        asked = replace(query or RouteQuery(1), sequence=number)
        in_flight[router.decide(asked, loaded, rng).replica] += 1
    return in_flight


@given(st.sampled_from(sorted(POLICIES)), fleets(st.just(1.0)), QUERIES, WEIGHTS)
def test_equal_weights_decide_as_no_weights_do(kind, fleet, query, weight):
    heavy = [replace(candidate, weight=weight) for candidate in fleet]
    plain, same = (
        Router(POLICIES[kind](), LoadBound(1.2, 1)).decide(query, candidates, Random(5))
        for candidates in (fleet, heavy)
    )
    assert (same.replica, same.reason, same.load_cap) == (
        plain.replica,
        plain.reason,
        plain.load_cap,
    )
    assert list(same.order) == list(plain.order)
    assert [r.score for r in same.ranked] == [r.score for r in plain.ranked]


@given(st.sampled_from(sorted(POLICIES)), fleets(), QUERIES, st.floats(1.0, 3.0), st.integers(0, 5))
def test_some_replica_is_always_under_its_cap(kind, fleet, query, bound, slack):
    decision = Router(POLICIES[kind](), LoadBound(bound, slack)).decide(query, fleet, Random(1))
    assert not decision.chosen.over_cap
    assert decision.load_cap == decision.chosen.load_cap
    if decision.load_cap is not None:
        assert decision.chosen.candidate.load.in_flight + 1 <= decision.load_cap
    assert sorted(decision.order) == [candidate.replica for candidate in fleet]


@given(fleets(), QUERIES, st.sampled_from(sorted(POLICIES)))
def test_only_ratios_of_weights_count(fleet, query, kind):
    doubled = [replace(candidate, weight=candidate.weight * 2.0) for candidate in fleet]
    one, two = (
        Router(POLICIES[kind]()).decide(query, candidates, Random(2)).replica
        for candidates in (fleet, doubled)
    )
    assert one == two


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        ("least_loaded", 0.02),
        ("round_robin", 0.02),
        ("power_of_two", 0.15),
        ("expected_ttft", 0.05),
        ("prefix_affinity", 0.02),
    ],
)
@pytest.mark.parametrize("weights", [(1.0, 2.0), (1.0, 1.0, 0.25), (3.0, 0.5, 1.0, 1.5)])
def test_a_replica_gets_its_weights_share_of_the_load(kind, tolerance, weights):
    fleet = weighted(**{f"r{i}": weight for i, weight in enumerate(weights)})
    got = serve(Router(POLICIES[kind](), UNBOUNDED), fleet, 1200)
    for i, weight in enumerate(weights):
        assert got[f"r{i}"] / 1200 == pytest.approx(weight / sum(weights), abs=tolerance)


@pytest.mark.parametrize("kind", ["least_loaded", "power_of_two", "expected_ttft"])
def test_an_idle_fleet_shares_by_weight_too(kind):
    """A canary of 5% must not get half of the requests at night."""
    fleet, rng = weighted(a=0.95, b=0.05), Random(0)
    router = Router(POLICIES[kind]())
    got = Counter(router.decide(RouteQuery(1), fleet, rng).replica for _ in range(2000))
    assert got["b"] / 2000 == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(
    ("kind", "key"), [("consistent_hash", "affinity_key"), ("session", "session_key")]
)
def test_hashed_keys_are_owned_by_weight_and_move_only_with_it(kind, key):
    router = Router(POLICIES[kind](), UNBOUNDED)

    def owners(**weights):
        fleet = weighted(**weights)
        return [
            router.decide(RouteQuery(1, Rung.HASHED, **{key: value}), fleet, Random(0)).replica
            for value in range(2000)
        ]

    before, after = owners(a=1.0, b=2.0, c=1.0), owners(a=1.0, b=3.0, c=1.0)
    assert before.count("b") / 2000 == pytest.approx(0.5, abs=0.04)
    assert after.count("b") / 2000 == pytest.approx(0.6, abs=0.04)
    moved = [(x, y) for x, y in zip(before, after, strict=True) if x != y]
    assert {y for _, y in moved} == {"b"}, "a weight that grows takes keys, and moves no others"


def test_round_robin_spreads_a_small_share_evenly():
    fleet = weighted(a=0.9, b=0.1)
    router = Router(POLICIES["round_robin"]())
    turns = [
        n
        for n in range(1000)
        if router.decide(RouteQuery(1, sequence=n), fleet, Random(0)).replica == "b"
    ]
    gaps = [later - earlier for earlier, later in pairwise(turns)]
    assert len(turns) == pytest.approx(100, abs=5)
    assert max(gaps) <= 21, "never twice as long without a request as on average"


@pytest.mark.parametrize(
    ("weight", "cap", "why"),
    [
        (1.0, 15, "the mean of 10, by 1.5"),
        (2.0, 30, "twice of that"),
        (0.5, 8, "ceil of half of it"),
        (0.001, 1, "one request is always allowed"),
    ],
)
def test_a_cap_is_in_proportion_to_the_weight(weight, cap, why):
    assert load_cap(99, 10, 1.5, 4, weight) == cap, why


def test_a_decision_shows_weight_and_cap_of_each_and_loads_as_they_are():
    fleet = [
        Candidate(ReplicaId("a"), ReplicaLoad(5), weight=1.0),
        Candidate(ReplicaId("b"), ReplicaLoad(6), weight=3.0),
    ]
    decision = Router(POLICIES["least_loaded"](), LoadBound(1.0, 0)).decide(
        RouteQuery(1), fleet, Random(0)
    )
    shown = [
        (r.candidate.replica, r.candidate.load.in_flight, r.candidate.weight, r.load_cap, r.score)
        for r in decision.ranked
    ]
    # 12 requests with the new one, 3 and 9 by weight; loads are seen over weights of mean 1
    assert shown == [("b", 6, 3.0, 9, 4.0), ("a", 5, 1.0, 3, 10.0)]


def test_a_weight_must_be_above_zero():
    with pytest.raises(ValueError, match="weight"):
        load_cap(1, 1, 1.5, 4, 0.0)


def test_a_replica_that_was_no_candidate_was_expected_to_hold_nothing():
    """The home of a session may be too busy to be a candidate, and still gets its requests."""
    decision = Router(POLICIES["least_loaded"]()).decide(RouteQuery(1), weighted(a=1.0), Random(0))
    assert decision.match_of(ReplicaId("b")) == PrefixMatch()
