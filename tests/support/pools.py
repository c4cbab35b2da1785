"""Pools without replicas or tokenizers, for tests of who gets a request."""

from gateway.config.guards import EjectionConfig
from gateway.config.models import CostConfig, ExpectedTtftConfig, SessionConfig
from gateway.config.rules import RuleConfig
from gateway.models import Model, Models
from gateway.proxy.transport import Origin
from gateway.replicas.facts import ReplicaFacts, ServedModel
from gateway.replicas.registry import Registry, Replica
from gateway.routes import build_cost, build_routes
from gateway.rules import Wanted

POLICIES = {
    "default": ExpectedTtftConfig(kind="expected_ttft"),
    "agents": SessionConfig(kind="session", header="x-agent"),
}


def pool(key, *names, weight=1.0, aliases=(), policy="default"):
    cost = build_cost(CostConfig())
    return Model(
        key=key,
        cost=cost,
        preparer=None,
        route_by_policy=build_routes(POLICIES, cost),
        default_policy=policy,
        names=frozenset([*names, *aliases]),
        aliases=frozenset(aliases),
        weight=weight,
    )


def rules(*given):
    return [RuleConfig.model_validate(rule) for rule in given]


def models(*pools, rules=()):
    return Models(pools, [RuleConfig.model_validate(rule) for rule in rules])


def wanted(name, path="/v1/chat/completions", key_name="", **headers):
    pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return Wanted(name, path, pairs, key_name)


def registry(*replicas):
    return Registry(replicas, EjectionConfig(), lambda: 0.0, lambda _: None)


def replica(name, model_key, *told, adapters=(), base="m"):
    """A replica that says it serves `told`, and adapters on top of `base`."""
    entries = [ServedModel(entry) for entry in told]
    entries += [ServedModel(adapter, parent=base) for adapter in adapters]
    facts = ReplicaFacts(models=tuple(entries))
    return Replica(name, model_key, f"http://{name}:1", Origin(name, 1), facts=facts)
