"""Any valid configuration, written as YAML, is read as itself."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import GatewayConfig, load_config

hosts = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
ports = st.integers(1, 65535)
seconds = st.floats(1e-9, 1e6)
costs = st.floats(0, 1)
# Names that YAML could take for something else, and ones that look like references.
names = st.text(alphabet="aeox01.-+_~:{}$#'\"", min_size=1, max_size=8)
labels = st.sampled_from(["null", "true", "1e5", "0x1", ".5", "a", "b-c", "[x]"])

bounds = {"load_bound": st.floats(1, 1e3), "slack": st.integers(0, 1000)}
policies = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("expected_ttft")},
        optional={
            **bounds,
            "profile": st.sampled_from(["additive", "balanced"]),
            "prefill_weight": st.floats(0, 100),
            "decode_steps": st.floats(0, 100),
            "fixed_s": costs,
        },
    ),
    st.fixed_dictionaries(
        {"kind": st.just("consistent_hash")},
        optional={**bounds, "affinity_blocks": st.integers(1, 99)},
    ),
    st.fixed_dictionaries(
        {"kind": st.just("session")},
        optional={**bounds, "header": st.sampled_from(["X-Session", "x-session-id", "1e5"])},
    ),
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["prefix_affinity", "power_of_two", "least_loaded"])},
        optional=bounds,
    ),
    st.just({"kind": "round_robin"}),
)
kv_events = st.one_of(
    st.sampled_from(["auto", "off"]),
    st.fixed_dictionaries(
        {"endpoint": st.builds("tcp://{}:{}".format, hosts, ports)},
        optional={"topic": names, "replay_endpoint": st.none()},
    ),
)
cost = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["reference", "a10g", None]),
        "prefill_token_s": costs,
        "l2_token_s": costs,
    },
)


def discoveries(of_model: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Sections that no other model has."""
    file = st.fixed_dictionaries(
        {"kind": st.just("file"), "path": st.just(f"/{of_model}")}, optional={"interval_s": seconds}
    )
    dns = st.fixed_dictionaries(
        {"kind": st.just("dns"), "host": st.just(f"Model{of_model}.test.")},
        optional={"stale_s": seconds, "servers": st.just(["10.0.0.1", "[::1]:53"])},
    ).flatmap(lambda section: st.sampled_from([{"port": 1}, {"service": "a"}]).map(section.__or__))
    kubernetes = st.fixed_dictionaries(
        {
            "kind": st.just("kubernetes"),
            "selector": st.just(f"model={of_model}"),
            "port": st.one_of(ports, st.just("http")),
        }
    )
    return st.lists(
        st.one_of(file, dns, kubernetes),
        max_size=3,
        # Without the numbers, of which 1 and 1.0 are the same section.
        unique_by=lambda one: (one["kind"], str(one.get("port")), one.get("service")),
    )


headers = st.dictionaries(st.sampled_from(["x-a", "x-b", "null"]), names, min_size=1)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    model_names = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    urls = draw(
        st.lists(
            st.builds("{}://{}:{}".format, st.sampled_from(["http", "https"]), hosts, ports),
            min_size=len(model_names),
            max_size=8,
            unique_by=lambda url: url.partition("://")[2],
        )
    )
    policy_by_name = draw(st.dictionaries(labels, policies, max_size=4))
    a_policy = st.sampled_from(["default", *policy_by_name])
    models = [
        {
            "name": name,
            "pool": draw(st.none() | st.just(f"pool {i}")),
            "weight": draw(st.floats(1e-9, 1e9) | st.integers(1, 100)),
            "policy": draw(st.none() | a_policy),
            "tokenizer": draw(st.none() | names),
            "block_size": draw(st.none() | st.integers(1, 4096)),
            "api_key": draw(st.none() | names),
            "cost": draw(cost),
            "replicas": [
                {"url": url, "kv_events": draw(kv_events)} for url in urls[i :: len(model_names)]
            ],
            "discovery": draw(discoveries(i)),
        }
        for i, name in enumerate(model_names)
    ]
    rules = st.fixed_dictionaries(
        {
            "when": st.one_of(
                st.fixed_dictionaries({"model": st.sampled_from(model_names)}),
                st.fixed_dictionaries({"headers": headers}),
                st.just({"path": "/v1/completions", "lora": "adapter"}),
                st.just({"api_key": "team-a"}),
            ),
            "policy": a_policy,
        }
    )
    named = st.fixed_dictionaries(
        {
            "when": st.just({"path": "/v1/embeddings"}),
            "pool": st.sampled_from([model["pool"] or model["name"] for model in models]),
        },
        optional={"policy": st.none() | a_policy, "name": st.just("a.rule")},
    )
    return {
        "models": models,
        "policies": policy_by_name,
        "default_policy": draw(a_policy),
        "rules": [*draw(st.lists(rules, max_size=3)), *draw(st.lists(named, max_size=1))],
        "auth": {"keys_file": "keys.yaml"},
        "listen": {"port": draw(st.integers(0, 9089))},
        "timeouts": {"connect_s": draw(seconds)},
        "decision_headers": draw(st.booleans()),
        "logging": {"level": draw(st.sampled_from(["debug", "info"]))},
    }


def plain(config: GatewayConfig) -> Any:
    """Return a configuration as plain data, its secrets in the clear, and `$` doubled in values."""
    dumped = config.model_dump(mode="json")
    for model, dumped_model in zip(config.models, dumped["models"], strict=True):
        if model.api_key is not None:
            dumped_model["api_key"] = model.api_key.get_secret_value()
    return escaped(dumped)


def escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def loaded(text: str) -> GatewayConfig:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.yaml"
        file.write_text(text, encoding="utf-8")
        return load_config(file, {})


class Dumper(yaml.SafeDumper):
    """Writes keys and values so that YAML 1.2 reads them as what they are."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012

    def represent_str(self, value: str) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:str", value, style='"')

    def choose_scalar_style(self) -> Any:
        self.event.implicit = (True, True)  # no tags
        return super().choose_scalar_style()


Dumper.add_representer(str, Dumper.represent_str)


# PyYAML composes a few hundred lines a second here, so fewer examples and no deadline.
SLOW = settings(deadline=None, max_examples=50)


@SLOW
@given(configs())
def test_as_block_yaml(values: dict[str, Any]) -> None:
    config = GatewayConfig.model_validate(values)
    text = yaml.dump(plain(config), Dumper=Dumper, allow_unicode=True)
    assert loaded(text) == config


@SLOW
@given(configs())
def test_as_json(values: dict[str, Any]) -> None:
    config = GatewayConfig.model_validate(values)
    assert loaded(json.dumps(plain(config), indent=1, ensure_ascii=False)) == config
