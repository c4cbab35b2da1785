"""Checks of pools and of the rules that send requests to them; part of crosschecks.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.errors import Finding, Path, did_you_mean, key_text
from gateway.config.plain import mappings, texts


@dataclass(frozen=True, slots=True)
class _Pool:
    """One entry of `models`, as far as it can be read.

    Attributes:
        key: Its name as a pool; None where that cannot be said.
        names: What requests call it, with the places that say so.
        is_named: The file says what its replicas serve; else they have to tell.
        weight: Its share; None where it is no number.
    """

    path: Path
    section: Mapping[str, Any]
    names: Mapping[str, Path]
    key: str | None
    is_named: bool
    weight: float | None


def _pools(document: Mapping[str, Any]) -> list[_Pool]:
    return [_pool(path, section) for path, section in mappings(document, ("models",))]


def _pool(path: Path, section: Mapping[str, Any]) -> _Pool:
    names: dict[str, Path] = {}
    for name_path, name in texts(section, path, "name", "aliases"):
        names.setdefault(name, name_path)
    key, weight = section.get("pool") or section.get("name"), section.get("weight", 1.0)
    return _Pool(
        path=path,
        section=section,
        names=names,
        key=key if isinstance(key, str) else None,
        is_named=isinstance(section.get("name"), str),
        weight=weight if isinstance(weight, int | float) else None,
    )


def pool_findings(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Find names and pools that are given twice, and names that no request could reach."""
    pools = _pools(document)
    for pool in pools:
        if pool.section.get("name") is None and len(pools) > 1:
            text = "required where a file has several models, add the name that requests use"
            yield Finding((*pool.path, "name"), text, show_value=False)
    yield from _doubled_names(pools)
    yield from _doubled_pools(pools)
    yield from _unreachable_names(document, pools)


def _doubled_names(pools: Sequence[_Pool]) -> Iterator[Finding]:
    owner_by_name: dict[str, Path] = {}
    for pool in pools:
        for path, name in texts(pool.section, pool.path, "name", "aliases"):
            if path != pool.names[name]:
                text = f"must be unique, {key_text(pool.names[name])} has the same name"
                yield Finding(path, text)
            elif name in owner_by_name and pool.section.get("pool") is None:
                # Only on purpose: an alias copied by mistake must not send half of the requests
                # to another model.
                text = f"must be unique, {key_text(owner_by_name[name])} has the same name"
                yield Finding(path, text, "; give this model a `pool` if they share its requests")
            owner_by_name.setdefault(name, path)


def _doubled_pools(pools: Sequence[_Pool]) -> Iterator[Finding]:
    owner_by_key: dict[str, _Pool] = {}
    for pool in pools:
        if pool.key is None:
            continue
        owner = owner_by_key.setdefault(pool.key, pool)
        told_as_name = pool.section.get("pool") is None and owner.section.get("pool") is None
        if owner is not pool and not told_as_name:
            text = f"must be unique, {key_text(owner.path)} is the pool {pool.key}, give another"
            yield Finding((*pool.path, "pool"), text, show_value=False)


def _unreachable_names(document: Mapping[str, Any], pools: Sequence[_Pool]) -> Iterator[Finding]:
    rules = mappings(document, ("rules",))
    pinned = {pool for path, rule in rules for _, pool in texts(rule, path, "pool")}
    told: set[Path] = set()
    for name in dict.fromkeys(name for pool in pools for name in pool.names):
        serving = [pool for pool in pools if name in pool.names]
        path = (*serving[0].path, "weight")
        closed = all(pool.weight == 0 and pool.key not in pinned for pool in serving)
        if closed and path not in told:
            told.add(path)
            text = f"must be > 0, or a rule must name the pool, else nothing serves {name}"
            yield Finding(path, text)


def rule_findings(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Find rules that choose nothing, that name what is not there, or that cannot match."""
    pools = _pools(document)
    owner_by_name: dict[str, Path] = {}
    for path, rule in mappings(document, ("rules",)):
        if rule.get("policy") is None and rule.get("pool") is None:
            text = "must choose a policy, a pool or both, add `policy: default` or alike"
            yield Finding(path, text, show_value=False)
        for name_path, name in texts(rule, path, "name"):
            owner = owner_by_name.setdefault(name, name_path)
            if owner != name_path:
                yield Finding(name_path, f"must be unique, {key_text(owner)} is the same")
        yield from _pool_reference(rule, path, pools)
        if isinstance(rule.get("when"), Mapping):
            yield from _conditions(rule["when"], (*path, "when"), pools)
            yield from _key_name(document, rule["when"], (*path, "when", "api_key"))
            yield from _never(rule, path, pools)


def _pool_reference(
    rule: Mapping[str, Any], path: Path, pools: Sequence[_Pool]
) -> Iterator[Finding]:
    known = [pool.key for pool in pools if pool.key is not None]
    # The one model without a name has a pool of its own name only where the file gives it one.
    for pool_path, name in texts(rule, path, "pool"):
        if name not in known:
            hint = did_you_mean(name, known) or f", defined here: {', '.join(sorted(set(known)))}"
            yield Finding(pool_path, "must be the name of a pool", hint if known else "")


def _conditions(when: Mapping[str, Any], path: Path, pools: Sequence[_Pool]) -> Iterator[Finding]:
    if not any(when.values()):
        text = "must have at least one condition: model, lora, path, headers or api_key"
        yield Finding(path, text, show_value=False)
    yield from _doubled_headers(when.get("headers"), (*path, "headers"))
    known = [name for pool in pools for name in pool.names]
    model, lora = when.get("model"), when.get("lora")
    # Without a name the models are only known once the replicas have been asked.
    names_are_known = all(pool.is_named for pool in pools)
    if names_are_known and isinstance(model, str) and model not in known:
        text = "must be the name or an alias of a model here"
        yield Finding((*path, "model"), text, did_you_mean(model, known))
    if lora is not None and lora in [pool.section.get("name") for pool in pools]:
        text = "must be a LoRA adapter, this is the name of a model, use `model`"
        yield Finding((*path, "lora"), text)
    if model is not None and lora is not None:
        text = "a request names a model or an adapter and never both, keep model or lora"
        yield Finding((*path, "lora"), text, show_value=False)


def _doubled_headers(headers: Any, path: Path) -> Iterator[Finding]:
    seen: set[str] = set()
    for name in headers if isinstance(headers, Mapping) else ():
        if name.lower() in seen:
            text = "given twice, as header names have no case, keep one"
            yield Finding((*path, name), text, show_value=False)
        seen.add(name.lower())


def _key_name(
    document: Mapping[str, Any], when: Mapping[str, Any], path: Path
) -> Iterator[Finding]:
    name, auth = when.get("api_key"), document.get("auth")
    if not isinstance(name, str):
        return
    section = auth if isinstance(auth, Mapping) else {}
    if section.get("keys_file") is not None:
        return  # it may hold any name, also one that comes later
    known = [
        key
        for path, one in mappings(section, ("auth", "keys"))
        for _, key in texts(one, path, "name")
    ]
    if not known:
        text = "needs API keys to tell callers apart, add auth.keys or auth.keys_file"
        yield Finding(path, text, show_value=False)
    elif name not in known:
        # Not the value: somebody may have put a key where its name belongs.
        hint = did_you_mean(name, known) or f", defined here: {', '.join(sorted(known))}"
        yield Finding(path, "must be the name of an API key", hint, show_value=False)


def _never(rule: Mapping[str, Any], path: Path, pools: Sequence[_Pool]) -> Iterator[Finding]:
    """Find a rule whose pool does not serve its model."""
    pool = next((pool for pool in pools if pool.key == rule.get("pool")), None)
    model = rule["when"].get("model")
    if pool is None or not pool.is_named or not isinstance(model, str) or model in pool.names:
        return
    serving = [one.key for one in pools if model in one.names and one.key is not None]
    if serving:
        pools_text = " or ".join(serving)
        text = f"must be a pool that serves {model} ({pools_text}), else the rule never matches"
        yield Finding((*path, "pool"), text)
