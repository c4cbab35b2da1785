from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from gateway.config.fleet import COST_PROFILES
from gateway.config.models import (
    CostConfig,
    ExpectedTtftConfig,
    GatewayConfig,
    ReplicaConfig,
    RoundRobinConfig,
    WhenConfig,
)
from gateway.config.schema import is_secret, sections_of

MODELS = [{"name": "m", "replicas": [{"url": "http://a:8000"}]}]


def config(**sections: object) -> GatewayConfig:
    return GatewayConfig.model_validate({"models": MODELS, **sections})


def test_the_defaults() -> None:
    given = config()
    assert (given.listen.host, given.listen.port) == ("0.0.0.0", 8080)
    assert (given.admin.host, given.admin.port) == ("127.0.0.1", 9090)
    assert given.default_policy == "default"
    policy = given.policies["default"]
    assert isinstance(policy, ExpectedTtftConfig)
    assert (policy.load_bound, policy.slack) == (1.5, 4)
    assert (policy.profile, policy.prefill_weight, policy.decode_steps) == ("additive", 2.0, 20.0)
    assert given.timeouts.first_byte_s == 600.0
    assert given.models[0].replicas[0].kv_events == "auto"


def test_the_policy_named_default_can_be_given() -> None:
    given = config(policies={"default": {"kind": "round_robin"}})
    assert given.policies == {"default": RoundRobinConfig(kind="round_robin")}


@pytest.mark.parametrize(
    ("url", "normal", "replica_id"),
    [
        ("http://a:8000", "http://a:8000", "a:8000"),
        ("HTTP://Engine-0.Default.SVC:8000/", "http://engine-0.default.svc:8000", None),
        ("http://a:80", "http://a", "a:80"),
        ("https://a", "https://a", "a:443"),
        ("https://a:80", "https://a:80", "a:80"),
        ("http://[2001:DB8::1]:8000", "http://[2001:db8::1]:8000", "[2001:db8::1]:8000"),
        ("http://10.0.0.1:08000", "http://10.0.0.1:8000", "10.0.0.1:8000"),
    ],
)
def test_a_replica_has_one_address_and_a_name(
    url: str, normal: str, replica_id: str | None
) -> None:
    replica = ReplicaConfig(url=url)
    assert replica.url == normal
    assert replica.id == (replica_id or "engine-0.default.svc:8000")
    assert ReplicaConfig(url=replica.url).url == replica.url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:8000",
        "ftp://a",
        "http://",
        "http://a:0",
        "http://a:65536",
        "http://a b",
        "http://a\n:80",
        "http://a/v1",
        "http://a?x",
        "http://a#x",
        "http://u:p@a",
        "http://[::1",
        "http://a:8000//",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        ReplicaConfig(url=url)


def test_keys_win_over_the_cost_profile() -> None:
    cost = CostConfig(profile="a10g", l2_token_s=1e-6)
    assert cost.prefill_token_s == 0.31e-3
    assert cost.prefill_pair_s == 0.0
    assert cost.l2_token_s == 1e-6
    assert cost.l1_token_s == 6e-6


def test_no_profile_is_the_reference() -> None:
    dumped = CostConfig().model_dump(exclude={"profile"})
    assert dumped == CostConfig(profile="reference").model_dump(exclude={"profile"})
    assert dumped == dict(COST_PROFILES["reference"])


@pytest.mark.parametrize("name", COST_PROFILES)
def test_every_profile_names_every_cost(name: str) -> None:
    assert COST_PROFILES[name].keys() == CostConfig.model_fields.keys() - {"profile"}


def test_header_names_have_no_case() -> None:
    when = WhenConfig.model_validate({"headers": {"X-Priority": "Batch"}})
    assert when.headers == {"x-priority": "Batch"}


@pytest.mark.parametrize(
    ("listen", "admin", "is_refused"),
    [
        ({"port": 9090}, {}, True),
        ({"port": 9090}, {"host": "10.0.0.1"}, True),
        ({"host": "10.0.0.1", "port": 9090}, {}, False),
        ({"host": "10.0.0.1", "port": 9090}, {"host": "10.0.0.1"}, True),
        ({"host": "10.0.0.1", "port": 9090}, {"host": "::"}, True),
        ({"port": 0}, {"port": 0}, False),
        ({}, {"host": "0.0.0.0"}, False),
    ],
)
def test_listeners_need_an_address_each(
    listen: dict[str, object], admin: dict[str, object], is_refused: bool
) -> None:
    if is_refused:
        with pytest.raises(ValidationError, match=r"must differ from listen\.port"):
            config(listen=listen, admin=admin)
    else:
        config(listen=listen, admin=admin)


def test_checks_across_keys_name_the_place() -> None:
    with pytest.raises(ValidationError) as caught:
        config(default_policy="absent", rules=[{"when": {"model": "n"}, "policy": "absent"}])
    assert [error["loc"] for error in caught.value.errors()] == [
        ("default_policy",),
        ("rules", 0, "policy"),
        ("rules", 0, "when", "model"),
    ]


def test_a_rule_may_name_any_model_while_the_names_are_unknown() -> None:
    GatewayConfig.model_validate(
        {
            "models": [{"replicas": [{"url": "http://a:8000"}]}],
            "rules": [{"when": {"model": "n"}, "policy": "default"}],
        }
    )


@pytest.mark.parametrize("key", ["", "k\n", "k k", "ä"])
def test_an_api_key_must_fit_into_a_header(key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(models=[{**MODELS[0], "api_key": key}])
    assert key.strip() == "" or key not in str(caught.value)


def test_an_api_key_is_not_shown() -> None:
    given = config(models=[{**MODELS[0], "api_key": "canary"}])
    assert given.models[0].api_key == SecretStr("canary")
    assert "canary" not in repr(given)
    assert "canary" not in given.model_dump_json()


def test_nothing_can_be_changed() -> None:
    given = config()
    with pytest.raises(ValidationError):
        given.decision_headers = False  # type: ignore[misc]
    assert isinstance(given.models, tuple)


def all_fields() -> list[tuple[str, object]]:
    found, todo = [], [GatewayConfig]
    while todo:
        section = todo.pop()
        for key, field in section.model_fields.items():
            found.append((f"{section.__name__}.{key}", field))
            todo += sections_of(field)
    return found


def test_every_field_is_described_and_required_ones_have_an_example() -> None:
    fields = all_fields()
    assert len(fields) > 60
    for name, field in fields:
        assert field.description, name
        assert field.description.endswith("."), name
        if field.is_required() and not name.endswith(".kind"):
            assert field.examples, name


SECRETS = ["KeyConfig.key", "IndexConfig.url", "IndexConfig.password", "ModelConfig.api_key"]


def test_the_only_secrets_are_keys_and_what_opens_redis() -> None:
    assert [name for name, field in all_fields() if is_secret(field)] == SECRETS
