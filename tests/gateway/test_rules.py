"""Which pools and which policy a request gets, by its name and the rules."""

import pytest

from gateway.errors import ModelNotFound, NoEligibleReplica
from gateway.replicas.facts import ReplicaFacts, ServedModel
from tests.support.pools import models, pool, replica, wanted


def keys(pools):
    return [pool.key for pool in pools]


CONDITIONS = [
    ("the name", {"model": "m"}, wanted("m"), True),
    ("another name of the same model", {"model": "m"}, wanted("alias"), False),
    ("an alias", {"model": "alias"}, wanted("alias"), True),
    ("an adapter", {"lora": "sql"}, wanted("sql"), True),
    ("another adapter", {"lora": "sql"}, wanted("chat"), False),
    ("a base model is no adapter", {"lora": "told"}, wanted("told"), False),
    ("the path", {"path": "/v1/completions"}, wanted("m", "/v1/completions"), True),
    ("the path only in part", {"path": "/v1/completions"}, wanted("m", "/v1/complet"), False),
    ("the key's name", {"api_key": "team-a"}, wanted("m", key_name="team-a"), True),
    ("another key's name", {"api_key": "team-a"}, wanted("m", key_name="team-b"), False),
    ("no key", {"api_key": "team-a"}, wanted("m"), False),
    ("a header", {"headers": {"X-A": "b"}}, wanted("m", x_a="b"), True),
    ("its value in another case", {"headers": {"x-a": "b"}}, wanted("m", x_a="B"), False),
    ("one of two headers", {"headers": {"x-a": "b", "x-c": "d"}}, wanted("m", x_a="b"), False),
    ("all of several", {"model": "m", "api_key": "k"}, wanted("m", key_name="k"), True),
    ("one of several", {"model": "m", "api_key": "k"}, wanted("m", key_name="l"), False),
]


@pytest.mark.parametrize(
    ("when", "request_", "expected"), [c[1:] for c in CONDITIONS], ids=[c[0] for c in CONDITIONS]
)
def test_a_rule_takes_what_all_its_conditions_hold_for(when, request_, expected):
    known = models(pool("m", "m", aliases=["alias"]), rules=[{"when": when, "policy": "agents"}])
    known.learn(replica("r", "m", "m", "alias", "told", adapters=["sql", "chat"]))
    offer = known.offer(request_)
    assert (offer.rule is not None) == expected
    [only] = offer.open
    assert offer.route(only).name == ("agents" if expected else "default")


def test_the_first_rule_that_matches_wins_and_without_one_the_pool_decides():
    a = {"when": {"headers": {"x-a": "1"}}, "policy": "default", "name": "first"}
    b = {"when": {"path": "/v1/chat/completions"}, "policy": "agents"}
    known = models(pool("m", "m", policy="agents"), rules=[a, b])
    assert known.offer(wanted("m", x_a="1")).rule.label == "first"
    assert known.offer(wanted("m")).rule.label == "rules[1]"
    other = known.offer(wanted("m", "/v1/completions"))
    assert other.rule is None
    assert other.route(other.open[0]).name == "agents"


def test_a_rules_pool_wins_over_weights_and_keeps_its_own_policy():
    stable, trial = pool("stable", "m"), pool("trial", "m", weight=0.0, policy="agents")
    pin = {"when": {"headers": {"x-trial": "yes"}}, "pool": "trial"}
    known = models(stable, trial, rules=[pin])
    assert keys(known.offer(wanted("m")).open) == ["stable"]
    pinned = known.offer(wanted("m", x_trial="yes"))
    assert (keys(pinned.open), keys(pinned.pools)) == (["trial"], ["stable", "trial"])
    assert pinned.route(trial).name == "agents"


def test_a_rule_may_choose_both():
    both = {"when": {"path": "/v1/completions"}, "pool": "trial", "policy": "agents"}
    known = models(pool("stable", "m"), pool("trial", "m"), rules=[both])
    offer = known.offer(wanted("m", "/v1/completions"))
    assert keys(offer.open) == ["trial"]
    assert offer.route(offer.open[0]).name == "agents"


def test_a_rules_pool_takes_only_names_that_it_serves():
    tenant = {"when": {"api_key": "bank"}, "pool": "bank"}
    later = {"when": {"api_key": "bank"}, "policy": "agents"}
    known = models(
        pool("m", "m"), pool("n", "n"), pool("bank", "m", weight=0), rules=[tenant, later]
    )
    assert keys(known.offer(wanted("m", key_name="bank")).open) == ["bank"]
    other = known.offer(wanted("n", key_name="bank"))
    assert (keys(other.open), other.rule.label) == (["n"], "rules[1]")


def test_a_name_of_pools_without_shares_is_for_rules_alone():
    pin = {"when": {"api_key": "bank"}, "pool": "bank"}
    known = models(pool("bank", "m", weight=0), pool("n", "n"), rules=[pin])
    assert keys(known.offer(wanted("m", key_name="bank")).open) == ["bank"]
    with pytest.raises(ModelNotFound, match="Served models: n"):
        known.offer(wanted("m"))


def test_an_alias_may_have_several_pools():
    known = models(pool("a", "a", aliases=["fast"]), pool("b", "b", aliases=["fast"]))
    assert keys(known.offer(wanted("fast")).open) == ["a", "b"]
    assert keys(known.offer(wanted("b")).open) == ["b"]
    assert list(known.served()) == ["a", "b", "fast"]


# Names that replicas tell.


def test_a_configured_name_keeps_its_pools_whatever_others_tell():
    known = models(pool("m", "m"), pool("n", "n"))
    known.learn(replica("r", "n", "n", "m", "x"))
    assert keys(known.offer(wanted("m")).open) == ["m"]
    assert keys(known.offer(wanted("x")).open) == ["n"]


def test_an_adapter_is_served_where_it_is_loaded_and_unloading_is_noticed():
    known = models(pool("stable", "m"), pool("trial", "m"))
    first, second = replica("r0", "stable", "m"), replica("r1", "trial", "m", adapters=["sql"])
    known.learn(first)
    known.learn(second)
    assert keys(known.offer(wanted("sql")).open) == ["trial"]
    assert known.served()["sql"].parent == "m"
    second.facts = ReplicaFacts(models=(ServedModel("m"),))
    known.learn(second)
    with pytest.raises(ModelNotFound):
        known.offer(wanted("sql"))
    assert "sql" not in known.served()


def test_a_replica_that_lists_nothing_for_once_has_unloaded_nothing():
    known = models(pool("m"))
    one = replica("r", "m", "m", adapters=["sql"])
    known.learn(one)
    one.facts = ReplicaFacts()
    known.learn(one)
    assert list(known.served()) == ["m", "sql"]


def test_what_only_a_gone_replica_served_is_not_served():
    known = models(pool("m", "m"))
    one, two = replica("r0", "m", "m", adapters=["sql"]), replica("r1", "m", "m")
    known.learn(one)
    known.learn(two)
    known.forget(one)
    assert list(known.served()) == ["m"]


def test_names_that_replicas_have_to_tell_are_waited_for():
    known = models(pool("default"))
    with pytest.raises(NoEligibleReplica):
        known.offer(wanted("m"))
    known.learn(replica("r", "default", "m"))
    assert keys(known.offer(wanted("m")).open) == ["default"]
    with pytest.raises(ModelNotFound):
        known.offer(wanted("n"))


def able(model, name, *replicas):
    return [one.replica_id for one in model.able(list(replicas), name)]


def test_requests_for_an_adapter_go_to_replicas_that_have_it():
    only = pool("m", "m", aliases=["on-demand"])
    known = models(only)
    has, has_not, silent = (
        replica("r0", "m", "m", adapters=["sql"]),
        replica("r1", "m", "m"),
        replica("r2", "m"),
    )
    for one in (has, has_not, silent):
        known.learn(one)
    assert able(only, "m", has, has_not, silent) == ["r0", "r1", "r2"]
    assert able(only, "sql", has, has_not, silent) == ["r0", "r2"], "r2 may have it"
    assert able(only, "sql", has_not) == []
    assert able(only, "on-demand", has, has_not, silent) == ["r0", "r1", "r2"]


def test_an_adapter_that_is_loaded_on_demand_has_block_keys_of_its_own():
    only = pool("m", "m", aliases=["sql", "small"])
    known = models(only)
    assert only.lora("sql") == "", "nobody has told anything yet"
    known.learn(replica("r", "m", "m", "small"))
    assert (only.lora("m"), only.lora("small"), only.lora("sql")) == ("", "", "sql")


def test_lengths_of_a_shared_name_are_told_as_the_shortest():
    known = models(pool("a", "m"), pool("b", "m"))
    for key, length in (("a", 8192), ("b", 4096)):
        one = replica(key, key)
        one.facts = ReplicaFacts(models=(ServedModel("m", None, length),))
        known.learn(one)
    assert known.served()["m"].max_model_len == 4096
