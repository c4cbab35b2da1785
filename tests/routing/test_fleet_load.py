"""The load of several gateways: what is known late, and guessed from our own."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.fleet_load import FleetLoad, Snapshot
from routing.policies import ExpectedTtft, LeastLoaded
from routing.router import NOISE_RATIO, Router
from routing.types import Candidate, ReplicaId, ReplicaLoad, RouteQuery

R0, R1 = ReplicaId("r0"), ReplicaId("r1")
TTL_S = 1.0
numbers = st.integers(0, 50)


def load(in_flight, prefill_s=0.0, kv_tokens=0):
    return ReplicaLoad(in_flight, prefill_s, kv_tokens)


loads = st.builds(load, numbers, st.floats(0, 9), numbers)


def heard(snapshots, own=None, now=10.0):
    fleet = FleetLoad(TTL_S)
    fleet.note_own(own or {}, now)
    fleet.hear([Snapshot(at, loads) for at, loads in snapshots], now)
    return fleet


def test_nobody_else_leaves_our_own_load_as_it_is():
    own = load(3, 0.5, 100)
    assert FleetLoad(TTL_S).of_fleet(R0, own, 10.0) is own
    assert heard([]).of_fleet(R0, own, 10.0) is own


def test_others_add_up():
    fleet = heard([(10.0, {R0: load(2, 0.5, 100)}), (10.0, {R0: load(3), R1: load(1)})])
    assert fleet.of_fleet(R0, load(0), 10.0) == load(5, 0.5, 100)
    assert fleet.of_fleet(R1, load(0), 10.0) == load(1)


def test_what_we_did_since_the_others_are_taken_to_have_done_too():
    fleet = heard([(10.0, {R0: load(2)}), (10.0, {R0: load(3)})], own={R0: load(4)})
    assert fleet.of_fleet(R0, load(4), 10.0).in_flight == 4 + 5
    assert fleet.of_fleet(R0, load(6), 10.05).in_flight == 6 + 5 + 2 * 2
    assert fleet.of_fleet(R0, load(3), 10.05).in_flight == 3 + 5 - 2


def test_a_snapshot_is_compared_with_our_own_load_of_its_own_moment():
    fleet = FleetLoad(TTL_S)
    fleet.note_own({R0: load(1)}, 9.9)
    fleet.note_own({R0: load(5)}, 10.0)
    fleet.hear([Snapshot(9.91, {R0: load(1)})], 10.0)
    # It stood at 1 as we did; since then we took 4, and so did they.
    assert fleet.of_fleet(R0, load(5), 10.0).in_flight == 5 + 1 + 4


def test_a_gateway_that_tells_nothing_any_more_has_no_load():
    fleet = heard([(10.0, {R0: load(9)}), (10.0, {R0: load(1)})])
    fleet.hear([Snapshot(11.0, {R0: load(1)}), Snapshot(9.9, {R0: load(9)})], 11.0)
    assert fleet.num_others == 1
    assert fleet.of_fleet(R0, load(0), 11.0).in_flight == 1


def test_without_an_exchange_our_own_load_counts_for_each_gateway_that_was_there():
    fleet = heard([(10.0, {R0: load(9), R1: load(2)}), (10.0, {})], own={R0: load(1)})
    assert fleet.of_fleet(R0, load(2), 11.0).in_flight == 3 * 2
    assert fleet.of_fleet(R1, load(0), 11.0).in_flight == 0


@given(st.lists(loads, max_size=5), loads)
def test_without_a_change_of_ours_it_is_exactly_the_sum(others, own):
    fleet = heard([(10.0, {R0: one}) for one in others], own={R0: own})
    found = fleet.of_fleet(R0, own, 10.0)
    assert found.in_flight == own.in_flight + sum(one.in_flight for one in others)
    assert found.kv_tokens == own.kv_tokens + sum(one.kv_tokens for one in others)
    total_s = own.prefill_s + sum(one.prefill_s for one in others)
    assert found.prefill_s == pytest.approx(total_s, abs=1e-9)


@given(st.lists(loads, max_size=5), loads, loads)
def test_no_load_is_below_our_own(others, before, own):
    found = heard([(10.0, {R0: one}) for one in others], own={R0: before}).of_fleet(R0, own, 10.0)
    assert found.in_flight >= own.in_flight
    assert found.prefill_s >= own.prefill_s
    assert found.kv_tokens >= own.kv_tokens


@given(st.lists(loads, min_size=1, max_size=5), loads, numbers)
def test_each_request_of_ours_stands_for_one_of_each_gateway(others, before, more):
    fleet = heard([(10.0, {R0: one}) for one in others], own={R0: before})
    first = fleet.of_fleet(R0, before, 10.0).in_flight
    own = load(before.in_flight + more, before.prefill_s, before.kv_tokens)
    assert fleet.of_fleet(R0, own, 10.05).in_flight == first + more * (1 + len(others))


def candidates(*in_flight):
    return [Candidate(ReplicaId(f"r{n}"), load(count)) for n, count in enumerate(in_flight)]


def decide(policy, num_gateways, rng, *in_flight):
    query = RouteQuery(num_prompt_tokens=100, num_gateways=num_gateways)
    return Router(policy).decide(query, candidates(*in_flight), rng)


def test_alone_a_decision_has_no_noise():
    assert decide(LeastLoaded(), 1, random.Random(1), 4, 5).scores.values == [4.0, 5.0]


def test_among_several_gateways_noise_is_a_term_of_its_own():
    scores = decide(ExpectedTtft(), 2, random.Random(1), 4, 5).scores
    for place, value in enumerate(scores.values):
        noise = scores.terms["noise"][place]
        assert 0 < abs(noise) <= NOISE_RATIO * (value - noise)
        assert sum(column[place] for column in scores.terms.values()) == pytest.approx(value)


def test_noise_never_prefers_what_is_worse_by_more_than_twice_its_ratio():
    rng = random.Random(2)
    chosen = {decide(LeastLoaded(), 2, rng, 20, 21, 23).replica for _ in range(300)}
    assert chosen == {"r0", "r1"}
