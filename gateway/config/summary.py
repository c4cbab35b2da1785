"""What a valid configuration says, in a few lines for the person who wrote it."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.models import GatewayConfig, ModelConfig, RuleConfig


def summary(config: GatewayConfig) -> Iterator[str]:
    """Yield one line for each pool, replica, discovery, policy in use and rule.

    Values of headers are left out, as there may be secrets among them.
    """
    for model in config.models:
        policy = model.policy or config.default_policy
        yield f"  model {_names(model)}: {_source(model)}, policy {policy}"
        for replica in model.replicas:
            yield f"    replica {replica.id}: {replica.url}"
        for section in model.discovery:
            yield f"    discovery {section.kind}: {section.source}"
    for name in sorted(used_policies(config)):
        yield f"  policy {name}: {config.policies[name].kind}"
    for position, rule in enumerate(config.rules):
        yield f"  rule {rule.name or f'rules[{position}]'}: {_conditions(rule)} -> {_choice(rule)}"


def used_policies(config: GatewayConfig) -> frozenset[str]:
    """Return the names of the policies that some request can go by."""
    models = (model.policy or config.default_policy for model in config.models)
    rules = (rule.policy for rule in config.rules if rule.policy is not None)
    return frozenset((*models, *rules))


def _names(model: ModelConfig) -> str:
    text = model.name or "(name read from the replicas)"
    if model.aliases:
        text += f", also called {', '.join(model.aliases)}"
    if model.pool is not None or model.weight != 1.0:
        text += f", pool {model.pool or model.name or 'default'} with weight {model.weight:g}"
    return text


def _source(model: ModelConfig) -> str:
    """Say what feeds a pool: a listed number of replicas, discoveries, or both."""
    kinds = ", ".join(dict.fromkeys(section.kind for section in model.discovery))
    if not model.replicas:
        return f"replicas found by {kinds}"
    number = len(model.replicas)
    listed = f"{number} replica" if number == 1 else f"{number} replicas"
    return f"{listed} and those found by {kinds}" if kinds else listed


def _conditions(rule: RuleConfig) -> str:
    when = rule.when
    named = {"model": when.model, "lora": when.lora, "path": when.path, "api_key": when.api_key}
    told = [f"{key} {value}" for key, value in named.items() if value is not None]
    return ", ".join([*told, *(f"header {name}" for name in when.headers)])


def _choice(rule: RuleConfig) -> str:
    chosen = {"policy": rule.policy, "pool": rule.pool}
    return ", ".join(f"{key} {value}" for key, value in chosen.items() if value is not None)
