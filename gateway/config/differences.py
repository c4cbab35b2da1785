"""What changed between two configurations, for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr

from gateway.config.models import GatewayConfig

# Of one value, as shown: a URL fits, a list of 300 replicas does not have to.
MAX_SHOWN = 120
# Read once, when the process starts: sockets are bound, threads and bounded maps are made.
_INDEX_NEEDS_RESTART = (
    "backend",
    "url",
    "namespace",
    "username",
    "password",
    "tls",
    "connect_timeout_s",
    "reply_timeout_s",
    "entry_ttl_s",
    "max_blocks",
)
NEEDS_RESTART = (
    "listen",
    "admin",
    "prepare.threads",
    *(f"index.{name}" for name in _INDEX_NEEDS_RESTART),
)
"""Keys whose new values wait for a restart; what is below them too."""

# Texts that are shown nowhere, or mappings to such: a rule may go by a header that holds a token.
_SECRET_KEYS = frozenset({"key", "sha256", "headers"})
_NAME_KEYS = ("id", "pool", "name")


@dataclass(frozen=True, slots=True)
class Difference:
    """One key whose value changed.

    Attributes:
        key: Dotted path, where list items that have a name go by it: `models[llama].policy`.
        before: The old value as JSON; None where there was none.
        after: The new value as JSON; None where it is gone.
    """

    key: str
    before: str | None
    after: str | None

    @property
    def needs_restart(self) -> bool:
        """Whether the running gateway keeps the old value."""
        return any(self.key == key or self.key.startswith(f"{key}.") for key in NEEDS_RESTART)

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.key}: added {self.after}"
        if self.after is None:
            return f"{self.key}: removed {self.before}"
        return f"{self.key}: {self.before} -> {self.after}"


def differences(before: GatewayConfig, after: GatewayConfig) -> list[Difference]:
    """Return what changed, in the order of the file's sections.

    Secrets are shown as `(secret)`, and only that they changed is told.
    """
    return list(_walk("", _tree(before), _tree(after)))


def restart_values(running: GatewayConfig, wanted: GatewayConfig) -> GatewayConfig:
    """Return `wanted` with the running values of all keys that need a restart."""
    index = wanted.index.model_copy(
        update={name: getattr(running.index, name) for name in _INDEX_NEEDS_RESTART}
    )
    prepare = wanted.prepare.model_copy(update={"threads": running.prepare.threads})
    kept = {"listen": running.listen, "admin": running.admin, "index": index, "prepare": prepare}
    return wanted.model_copy(update=kept)


def _tree(value: Any) -> Any:
    """Return a configuration as mappings, lists and plain values; secrets stay wrapped."""
    if isinstance(value, BaseModel):
        return {
            name: _hidden(item) if name in _SECRET_KEYS else _tree(item) for name, item in value
        }
    if isinstance(value, Mapping):
        return {str(key): _tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tree(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return value


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    return SecretStr(value) if isinstance(value, str) else value


def _walk(key: str, before: Any, after: Any) -> Iterator[Difference]:
    if before == after:
        return
    if isinstance(before, list) and isinstance(after, list):
        named = _by_name(before), _by_name(after)
        if None not in named:
            yield from _walk_items(key, *named, "[{}]")
            return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _walk_items(key, before, after, ".{}" if key else "{}")
        return
    yield Difference(key, _shown(before), _shown(after))


def _walk_items(key: str, before: Any, after: Any, step: str) -> Iterator[Difference]:
    for name in [*after, *(gone for gone in before if gone not in after)]:
        below = key + step.format(name)
        if name in before and name in after:
            yield from _walk(below, before[name], after[name])
        else:
            yield Difference(below, _shown(before.get(name)), _shown(after.get(name)))
    if list(before) != list(after) and set(before) == set(after) and step == "[{}]":
        yield Difference(key, f"order {', '.join(before)}", f"order {', '.join(after)}")


def _by_name(items: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return a list's items by their names; None where they have none, or not one each."""
    named: dict[str, Any] = {}
    for item in items:
        found = (item.get(key) for key in _NAME_KEYS) if isinstance(item, Mapping) else ()
        name = next((str(name) for name in found if name), None)
        if name is None or name in named:
            return None
        named[name] = item
    return named


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    text = json.dumps(_given(value), ensure_ascii=False, default=lambda _: "(secret)")
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _given(value: Any) -> Any:
    """Leave out what is not set: a new replica is its address and not ten defaults."""
    if isinstance(value, Mapping):
        return {key: _given(item) for key, item in value.items() if item not in (None, [], {}, "")}
    return [_given(item) for item in value] if isinstance(value, list) else value
