"""Checks that look at several keys at once.

They read the configuration as plain data and skip what is missing or of a wrong type, so that they
also run on a file whose single keys are wrong and all problems are told at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from gateway.config.errors import Finding, Path, did_you_mean, key_text
from gateway.config.fields import DEFAULT_ADMIN, DEFAULT_LISTEN, host_and_port, normal_url
from gateway.config.plain import mappings, texts
from gateway.config.rulechecks import pool_findings, rule_findings

DEFAULT_POLICY = "default"
"""Name of the policy that exists even where the file defines none."""

_ANY_HOST = frozenset({"0.0.0.0", "::"})


def cross_findings(document: Any) -> list[Finding]:
    """Return what contradicts itself or points nowhere.

    Args:
        document: The file's content as plain data, or a dumped `GatewayConfig`.
    """
    if not isinstance(document, Mapping):
        return []
    return [
        *_empty_lists(document),
        *pool_findings(document),
        *_replicas(document),
        *_discoveries(document),
        *_policy_references(document),
        *rule_findings(document),
        *_listeners(document),
        *_isolation(document),
        *_index(document),
    ]


def _index(document: Mapping[str, Any]) -> Iterator[Finding]:
    index = document.get("index")
    if not isinstance(index, Mapping) or index.get("backend") != "redis":
        return
    if index.get("url") is None:
        text = "required with backend redis, add where it is, such as redis://redis:6379"
        yield Finding(("index", "url"), text, show_value=False)


def _isolation(document: Mapping[str, Any]) -> Iterator[Finding]:
    isolation, auth = document.get("isolation"), document.get("auth")
    if isinstance(isolation, Mapping) and isolation.get("by") == "api_key":
        given = isinstance(auth, Mapping) and (auth.get("keys") or auth.get("keys_file"))
        if not given:
            text = "needs API keys to tell tenants apart, add auth.keys or auth.keys_file"
            yield Finding(("isolation", "by"), text, show_value=False)


def _empty_lists(document: Mapping[str, Any]) -> Iterator[Finding]:
    if document.get("models") in ([], ()):
        yield Finding(("models",), "must list at least one model, got none", show_value=False)
    for path, model in mappings(document, ("models",)):
        if model.get("replicas", ()) in ([], ()) and model.get("discovery", ()) in ([], ()):
            text = "must list at least one replica, got none"
            if "replicas" not in model:
                example = "`replicas: [{url: 'http://engine-0:8000'}]` or a `discovery`"
                text = f"required but missing, add {example}"
            yield Finding((*path, "replicas"), text, show_value=False)


def _replicas(document: Mapping[str, Any]) -> Iterator[Finding]:
    owner_by_url: dict[str, Path] = {}
    owner_by_id: dict[str, Path] = {}
    for model_path, model in mappings(document, ("models",)):
        for path, replica in mappings(model, (*model_path, "replicas"), "replicas"):
            url = _normal_or_none(replica.get("url"))
            if url is not None:
                owner = owner_by_url.setdefault(url, path)
                if owner != path:
                    text = f"must be unique, {key_text(owner)} has the same address"
                    yield Finding((*path, "url"), text)
                    continue  # their default ids are the same for the same reason
            replica_id = replica.get("id") or (host_and_port(url) if url else None)
            if isinstance(replica_id, str):
                owner = owner_by_id.setdefault(replica_id, path)
                if owner != path:
                    text = f"must be unique, {key_text(owner)} has the same id"
                    yield Finding((*path, "id"), text)


def _discoveries(document: Mapping[str, Any]) -> Iterator[Finding]:
    seen: list[tuple[Path, Mapping[str, Any]]] = []
    for model_path, model in mappings(document, ("models",)):
        for path, section in mappings(model, (*model_path, "discovery"), "discovery"):
            owner = next((known for known, other in seen if other == section), None)
            if owner is not None:
                text = f"must be unique, {key_text(owner)} finds the same replicas"
                yield Finding(path, text, show_value=False)
            seen.append((path, section))


def _policy_references(document: Mapping[str, Any]) -> Iterator[Finding]:
    policies = document.get("policies")
    known = [DEFAULT_POLICY, *(policies if isinstance(policies, Mapping) else ())]
    users = [*mappings(document, ("models",)), *mappings(document, ("rules",))]
    references = [ref for path, user in users for ref in texts(user, path, "policy")]
    for path, name in [*texts(document, (), "default_policy"), *references]:
        if name not in known:
            names = ", ".join(sorted(set(known)))
            hint = did_you_mean(name, known) or f", defined here: {names}"
            yield Finding(path, "must be the name of a policy", hint)


def _listeners(document: Mapping[str, Any]) -> Iterator[Finding]:
    host, port = _address(document.get("listen"), *DEFAULT_LISTEN)
    admin_host, admin_port = _address(document.get("admin"), *DEFAULT_ADMIN)
    overlap = host == admin_host or bool(_ANY_HOST & {host, admin_host})
    if port == admin_port != 0 and overlap:
        yield Finding(
            ("admin", "port"), "must differ from listen.port, both would bind the same address"
        )


def _address(section: Any, host: str, port: int) -> tuple[Any, Any]:
    given = section if isinstance(section, Mapping) else {}
    return given.get("host", host), given.get("port", port)


def _normal_or_none(url: Any) -> str | None:
    try:
        return normal_url(url) if isinstance(url, str) else None
    except PydanticCustomError:
        return None
