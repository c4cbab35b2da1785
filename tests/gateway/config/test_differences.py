"""What a reload says has changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.differences import differences, restart_values
from gateway.config.models import GatewayConfig


def config(**sections):
    sections.setdefault("models", [{"name": "m", "replicas": [{"url": "http://a:1"}]}])
    return GatewayConfig.model_validate(sections)


def told(before, after):
    return [str(difference) for difference in differences(before, after)]


def test_equal_configurations_differ_in_nothing():
    assert told(config(), config()) == []


def test_a_value_is_told_with_its_key_before_and_after():
    before = config(policies={"p": {"kind": "expected_ttft"}}, default_policy="p")
    after = config(policies={"p": {"kind": "expected_ttft", "slack": 9}}, default_policy="p")
    assert told(before, after) == ["policies.p.slack: 4 -> 9"]


def test_items_of_lists_go_by_their_names_wherever_they_stand():
    one = {"name": "one", "replicas": [{"id": "r0", "url": "http://a:1"}]}
    two = {"name": "two", "replicas": [{"url": "http://b:1"}]}
    moved = {**one, "replicas": [{"id": "r0", "url": "http://a:2"}]}
    assert told(config(models=[one, two]), config(models=[two, moved])) == [
        'models[one].replicas[r0].url: "http://a:1" -> "http://a:2"',
        "models: order one, two -> order two, one",
    ]


def test_new_and_removed_items_are_told_without_their_defaults():
    before = config()
    replicas = [{"url": "http://b:1"}]
    after = config(models=[{"name": "m", "replicas": replicas}])
    added, removed = told(before, after)
    assert added.startswith("models[m].replicas[b:1]: added {")
    assert '"url": "http://b:1"' in added
    assert removed.startswith("models[m].replicas[a:1]: removed {")


def test_no_value_of_a_header_is_shown():
    def ruled(value):
        when = {"path": "/v1/completions", "headers": {"x-token": value}}
        return config(rules=[{"name": "r", "when": when, "policy": "default"}])

    assert told(ruled("hidden-1"), ruled("hidden-2")) == [
        'rules[r].when.headers.x-token: "(secret)" -> "(secret)"'
    ]
    assert not any("hidden" in line for line in told(config(), ruled("hidden-1")))


def test_no_secret_is_shown():
    sha256 = "ab" * 32
    secret = {"name": "m", "api_key": "upstream-secret", "replicas": [{"url": "http://a:1"}]}
    keys = [{"name": "team", "key": "sk-secret"}, {"name": "other", "sha256": sha256}]
    before = config()
    after = config(models=[secret], auth={"keys": keys})
    changed = config(
        models=[{**secret, "api_key": "another-secret"}],
        auth={"keys": [{"name": "team", "key": "sk-new-secret"}, keys[1]]},
    )
    lines = told(before, after) + told(after, changed)
    assert 'auth.keys[team].key: "(secret)" -> "(secret)"' in lines
    assert not any(word in line for line in lines for word in ("-secret", sha256))


@pytest.mark.parametrize(
    ("section", "needs"),
    [
        ({"listen": {"port": 9999}}, True),
        ({"admin": {"host": "0.0.0.0"}}, True),
        ({"index": {"max_blocks": 5}}, True),
        ({"index": {"predicted_ttl_s": 5}}, False),
        ({"prepare": {"threads": 3}}, True),
        ({"limits": {"max_in_flight": 3}}, False),
    ],
)
def test_what_waits_for_a_restart_is_told_and_kept_as_it_runs(section, needs):
    running, wanted = config(), config(**section)
    assert [d.needs_restart for d in differences(running, wanted)] == [needs]
    assert differences(running, restart_values(running, wanted)) == (
        [] if needs else differences(running, wanted)
    )


SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "limits": st.fixed_dictionaries({"max_in_flight": st.integers(1, 3)}),
        "timeouts": st.fixed_dictionaries({"idle_s": st.integers(1, 3)}),
        "default_policy": st.just("default"),
        "rules": st.lists(
            st.fixed_dictionaries({
                "when": st.fixed_dictionaries({"path": st.sampled_from(["/v1/a", "/v1/b"])}),
                "policy": st.just("default"),
            }),
            max_size=3,
        ),
    },
)  # fmt: skip


@given(before=SECTIONS, after=SECTIONS)
def test_there_are_differences_exactly_where_the_configurations_are_not_equal(before, after):
    policies = {"default": {"kind": "least_loaded"}}
    old, new = config(policies=policies, **before), config(policies=policies, **after)
    assert (differences(old, new) == []) == (old == new)
