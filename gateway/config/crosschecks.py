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
        *_model_names(document),
        *_replicas(document),
        *_discoveries(document),
        *_policy_references(document),
        *_rules(document),
        *_listeners(document),
        *_isolation(document),
    ]


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
    for path, model in _mappings(document, ("models",)):
        if model.get("replicas", ()) in ([], ()) and model.get("discovery", ()) in ([], ()):
            text = "must list at least one replica, got none"
            if "replicas" not in model:
                example = "`replicas: [{url: 'http://engine-0:8000'}]` or a `discovery`"
                text = f"required but missing, add {example}"
            yield Finding((*path, "replicas"), text, show_value=False)


def _model_names(document: Mapping[str, Any]) -> Iterator[Finding]:
    owner_by_name: dict[str, Path] = {}
    models = list(_mappings(document, ("models",)))
    for path, model in models:
        if model.get("name") is None and len(models) > 1:
            text = "required where a file has several models, add the name that requests use"
            yield Finding((*path, "name"), text, show_value=False)
        for name_path, name in _texts(model, path, "name", "aliases"):
            owner = owner_by_name.setdefault(name, name_path)
            if owner != name_path:
                yield Finding(name_path, f"must be unique, {key_text(owner)} has the same name")


def _replicas(document: Mapping[str, Any]) -> Iterator[Finding]:
    owner_by_url: dict[str, Path] = {}
    owner_by_id: dict[str, Path] = {}
    for model_path, model in _mappings(document, ("models",)):
        for path, replica in _mappings(model, (*model_path, "replicas"), "replicas"):
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
    for model_path, model in _mappings(document, ("models",)):
        for path, section in _mappings(model, (*model_path, "discovery"), "discovery"):
            owner = next((known for known, other in seen if other == section), None)
            if owner is not None:
                text = f"must be unique, {key_text(owner)} finds the same replicas"
                yield Finding(path, text, show_value=False)
            seen.append((path, section))


def _policy_references(document: Mapping[str, Any]) -> Iterator[Finding]:
    policies = document.get("policies")
    known = [DEFAULT_POLICY, *(policies if isinstance(policies, Mapping) else ())]
    users = [*_mappings(document, ("models",)), *_mappings(document, ("rules",))]
    references = [ref for path, user in users for ref in _texts(user, path, "policy")]
    for path, name in [*_texts(document, (), "default_policy"), *references]:
        if name not in known:
            names = ", ".join(sorted(set(known)))
            hint = did_you_mean(name, known) or f", defined here: {names}"
            yield Finding(path, "must be the name of a policy", hint)


def _rules(document: Mapping[str, Any]) -> Iterator[Finding]:
    models = list(_mappings(document, ("models",)))
    known = [name for path, model in models for _, name in _texts(model, path, "name", "aliases")]
    # Without a name the models are only known once the replicas have been asked.
    names_are_known = all(isinstance(model.get("name"), str) for _, model in models)
    for path, rule in _mappings(document, ("rules",)):
        when = rule.get("when")
        if not isinstance(when, Mapping):
            continue
        if not any(when.values()):
            text = "must have at least one condition: model, path or headers"
            yield Finding((*path, "when"), text, show_value=False)
        yield from _doubled_headers(when.get("headers"), (*path, "when", "headers"))
        name = when.get("model")
        if names_are_known and isinstance(name, str) and name not in known:
            hint = did_you_mean(name, known)
            text = "must be the name or an alias of a model here"
            yield Finding((*path, "when", "model"), text, hint)


def _doubled_headers(headers: Any, path: Path) -> Iterator[Finding]:
    seen: set[str] = set()
    for name in headers if isinstance(headers, Mapping) else ():
        if name.lower() in seen:
            text = "given twice, as header names have no case, keep one"
            yield Finding((*path, name), text, show_value=False)
        seen.add(name.lower())


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


def _mappings(
    section: Mapping[str, Any], path: Path, key: str | None = None
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the mappings in the list at `key` (by default the path's last step) of `section`."""
    items = section.get(key if key is not None else str(path[-1]))
    for i, item in enumerate(items if isinstance(items, list | tuple) else ()):
        if isinstance(item, Mapping):
            yield (*path, i), item


def _texts(section: Mapping[str, Any], path: Path, *keys: str) -> Iterator[tuple[Path, str]]:
    """Yield the texts at `keys` of `section`, and those in lists there."""
    for key in keys:
        value = section.get(key)
        if isinstance(value, str):
            yield (*path, key), value
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                if isinstance(item, str):
                    yield (*path, key, i), item


def _normal_or_none(url: Any) -> str | None:
    try:
        return normal_url(url) if isinstance(url, str) else None
    except PydanticCustomError:
        return None
