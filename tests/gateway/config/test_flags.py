from __future__ import annotations

import pytest

from gateway.config import ConfigError, config_from_flags


def test_replicas_are_enough() -> None:
    config = config_from_flags(["http://a:8000", "http://b:8000/"])
    (model,) = config.models
    assert model.name is None
    assert model.tokenizer is None
    assert [replica.url for replica in model.replicas] == ["http://a:8000", "http://b:8000"]
    assert config.policies["default"].kind == "expected_ttft"
    assert (config.listen.port, config.admin.port) == (8080, 9090)


def test_every_flag_is_used() -> None:
    config = config_from_flags(
        ["http://a:8000"], "/models/m", host="::1", port=0, admin_port=1, policy="round_robin"
    )
    assert config.models[0].tokenizer == "/models/m"
    assert (config.listen.host, config.listen.port, config.admin.port) == ("::1", 0, 1)
    assert config.policies["default"].kind == "round_robin"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"replica_urls": []}, "--replica: must list at least one replica, got none"),
        (
            {"replica_urls": ["a:8000"]},
            "--replica: must be http://HOST:PORT or https://HOST:PORT, got 'a:8000'",
        ),
        ({"replica_urls": ["http://a"], "port": 70000}, "--port: must be <= 65535, got 70000"),
        (
            {"replica_urls": ["http://a"], "admin_port": 8080},
            (
                "--admin-port: must differ from listen.port, both would bind the same address"
                ", got 8080"
            ),
        ),
        (
            {"replica_urls": ["http://a"], "policy": "round-robin"},
            (
                "--policy: must be one of expected_ttft, prefix_affinity, consistent_hash, "
                "power_of_two, least_loaded, session, round_robin, got 'round-robin', "
                "did you mean round_robin?"
            ),
        ),
        (
            {"replica_urls": ["http://u:canary@a"]},
            (
                "--replica: must not hold a user name or password, use the model's api_key, "
                "got 'http://***@a'"
            ),
        ),
        (
            {"replica_urls": ["http://a"], "tokenizer": ""},
            (
                "--tokenizer: must be visible ASCII characters, not empty and without outer "
                "spaces, got ''"
            ),
        ),
    ],
)
def test_what_is_wrong_is_told_by_flag(flags: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_flags(**flags)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_all_wrong_flags_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_flags(["x", "http://a", "http://a"], port=-1)
    assert [problem.key for problem in caught.value.problems] == [
        "--port",
        "--replica",
        "--replica",
    ]
