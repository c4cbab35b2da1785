"""Several pools share the requests for a name by their weights, and keep sessions whole."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sharing import Sharing, in_order
from tests.support.pools import models, pool, registry, replica, wanted

weights = st.lists(st.floats(0.01, 100), min_size=2, max_size=5)
keys = st.integers(0, 2**64 - 1)


def pools(weights):
    return [pool(f"p{i}", "m", weight=weight) for i, weight in enumerate(weights)]


def first(pools, key):
    return in_order(pools, key)[0].key


@given(st.lists(st.integers(1, 20), min_size=2, max_size=4), st.integers(0, 2**32))
def test_shares_are_the_weights(weights, seed):
    """Of 2,000 draws, each pool gets its share within 6 standard deviations (and 6 draws)."""
    given_pools, rng, num_draws = pools(weights), Random(seed), 2000
    got = Counter(first(given_pools, rng.getrandbits(64)) for _ in range(num_draws))
    for one in given_pools:
        share = one.weight / sum(weights)
        deviation = (num_draws * share * (1 - share)) ** 0.5
        assert abs(got[one.key] - num_draws * share) <= 6 * deviation + 6


@given(weights, keys, st.randoms(use_true_random=False))
def test_the_order_depends_on_the_key_and_the_pools_alone(weights, key, rng):
    given_pools = pools(weights)
    shuffled = list(given_pools)
    rng.shuffle(shuffled)
    assert in_order(shuffled, key) == in_order(given_pools, key)


@given(weights, keys, st.floats(1.0, 100.0))
def test_a_growing_pool_loses_nothing_and_takes_only_for_itself(weights, key, factor):
    before = first(pools(weights), key)
    after = first(pools([weights[0] * factor, *weights[1:]]), key)
    assert after in (before, "p0")


@given(weights, keys)
def test_without_a_pool_only_its_own_keys_move(weights, key):
    order = in_order(pools(weights), key)
    for gone in order:
        assert (
            first([one for one in order if one is not gone], key)
            == (order[1] if gone is order[0] else order[0]).key
        )


class Fleet:
    """Two pools of one name, 3 to 1, with a replica each."""

    def __init__(self, seed=1, policy="default"):
        self.stable = pool("stable", "m", weight=3, policy=policy)
        self.trial = pool("trial", "m", weight=1)
        pin = {"when": {"headers": {"x-pin": "trial"}}, "pool": "trial"}
        self.models = models(self.stable, self.trial, rules=[pin])
        self.replicas = {key: replica(f"r-{key}", key, "m") for key in ("stable", "trial")}
        self.registry = registry(*self.replicas.values())
        for one in self.replicas.values():
            self.registry.probed_well(one)
        self.sharing = Sharing(self.registry, Random(seed))

    def choose(self, home=None, **headers):
        asked = wanted("m", **headers)
        return self.sharing.choose(self.models.offer(asked), asked.headers, home)

    def out(self, key):
        self.registry.failed(self.replicas[key], "refused", certain=True)


def test_requests_without_a_session_are_shared_at_random():
    fleet = Fleet(seed=7)
    got = Counter(fleet.choose().model.key for _ in range(4000))
    assert 2900 < got["stable"] < 3100
    again = Fleet(seed=7)
    assert Counter(again.choose().model.key for _ in range(4000)) == got


@pytest.mark.parametrize("header", ["x_session_id", "x_amzn_sagemaker_session_id"])
def test_a_session_stays_in_one_pool_on_every_gateway(header):
    one, other = Fleet(seed=1), Fleet(seed=2)
    got = Counter()
    for number in range(1000):
        sent = {header: f"session-{number}"}
        chosen = {fleet.choose(**sent).model.key for fleet in (one, other) for _ in range(3)}
        assert len(chosen) == 1
        got += Counter(chosen)
    assert 700 < got["stable"] < 800


def test_the_session_header_of_any_of_the_pools_policies_counts():
    fleet = Fleet(policy="agents")
    for header in ("x_agent", "x_session_id"):
        assert len({fleet.choose(**{header: "s"}).model.key for _ in range(30)}) == 1


def test_new_sagemaker_sessions_are_not_all_one_session():
    fleet = Fleet()
    sent = {"x_amzn_sagemaker_session_id": "NEW_SESSION"}
    assert {fleet.choose(**sent).model.key for _ in range(50)} == {"stable", "trial"}


@pytest.mark.parametrize("key", ["stable", "trial"])
def test_what_a_replica_keeps_stays_in_that_replicas_pool(key):
    fleet = Fleet()
    home = fleet.replicas[key].replica_id
    assert {fleet.choose(home).model.key for _ in range(20)} == {key}
    fleet.out(key)
    assert {fleet.choose(home).model.key for _ in range(20)} == {"stable", "trial"} - {key}


def test_a_pool_that_is_out_is_passed_over_and_its_sessions_come_back():
    fleet = Fleet()
    sessions = [f"s-{number}" for number in range(100)]
    before = {session: fleet.choose(x_session_id=session).model.key for session in sessions}
    assert set(before.values()) == {"stable", "trial"}
    fleet.out("trial")
    for session in sessions:
        choice = fleet.choose(x_session_id=session)
        assert choice.model is fleet.stable
        assert (choice.passed_over is fleet.trial) == (before[session] == "trial")
    trial = fleet.replicas["trial"]
    trial.ejected_until = 0.0
    fleet.registry.probed_well(trial)
    after = {session: fleet.choose(x_session_id=session).model.key for session in sessions}
    assert after == before


def test_where_all_pools_are_out_the_draw_holds_and_nothing_was_passed_over():
    fleet = Fleet()
    fleet.out("stable")
    fleet.out("trial")
    choices = [fleet.choose() for _ in range(50)]
    assert {choice.model.key for choice in choices} == {"stable", "trial"}
    assert {choice.passed_over for choice in choices} == {None}


def test_a_pinned_pool_is_kept_though_it_is_out():
    fleet = Fleet()
    fleet.out("trial")
    choice = fleet.choose(x_pin="trial")
    assert (choice.model, choice.passed_over, choice.rule) == (fleet.trial, None, "rules[0]")


def test_a_name_with_one_pool_draws_no_number_and_looks_for_no_replica():
    only = models(pool("m", "m"))
    sharing = Sharing(registry=None, rng=None)
    asked = wanted("m", x_session_id="s")
    assert sharing.choose(only.offer(asked), asked.headers).model.key == "m"


def test_an_adapter_goes_to_the_pool_whose_ready_replicas_have_it():
    fleet = Fleet()
    for key, name in (("stable", "more-stable"), ("trial", "more-trial")):
        with_it = replica(name, key, "m", adapters=["sql"])
        fleet.registry.add(with_it)
        fleet.models.learn(with_it)
        fleet.models.learn(fleet.replicas[key])
    fleet.registry.probed_well(fleet.registry["more-stable"])
    asked = wanted("sql")
    offer = fleet.models.offer(asked)
    assert [one.key for one in offer.open] == ["stable", "trial"]
    assert {fleet.sharing.choose(offer, ()).model.key for _ in range(50)} == {"stable"}
