"""Which requests a rule of the configuration takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.config.models import RuleConfig
from gateway.proxy.headers import Header, first
from routing.value import value


@value
class Wanted:
    """What rules look at in a request.

    Attributes:
        name: What it calls the model or the adapter.
        path: In the API, without a query.
        headers: Names in lower case.
        key_name: Name of the caller's API key; empty where no keys are in force.
    """

    name: str
    path: str
    headers: Sequence[Header]
    key_name: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, ready to be compared with requests; what it leaves open is None.

    Attributes:
        label: Its name, or its place in the file.
        policy: Name of the policy that it chooses.
        pool: Key of the pool that it chooses.
    """

    label: str
    model: str | None
    lora: str | None
    path: str | None
    key_name: str | None
    headers: tuple[Header, ...]
    policy: str | None
    pool: str | None

    def matches(self, wanted: Wanted, *, is_adapter: bool) -> bool:
        """Return whether all conditions hold.

        Args:
            wanted: The request.
            is_adapter: Whether it names a LoRA adapter, as far as is known.
        """
        if self.model is not None and self.model != wanted.name:
            return False
        if self.lora is not None and not (is_adapter and self.lora == wanted.name):
            return False
        if self.path is not None and self.path != wanted.path:
            return False
        if self.key_name is not None and self.key_name != wanted.key_name:
            return False
        return all(first(wanted.headers, name) == value for name, value in self.headers)


def build_rules(rules: Iterable[RuleConfig]) -> tuple[Rule, ...]:
    """Return the rules of a configuration, in their order."""
    return tuple(
        Rule(
            label=rule.name or f"rules[{position}]",
            model=rule.when.model,
            lora=rule.when.lora,
            path=rule.when.path,
            key_name=rule.when.api_key,
            headers=tuple(
                (name.encode(), value.encode()) for name, value in rule.when.headers.items()
            ),
            policy=rule.policy,
            pool=rule.pool,
        )
        for position, rule in enumerate(rules)
    )
