"""What runs, against what was meant to: after an operator has rendered its objects again. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.patch.arguments import (
    DETAILS,
    connector_problem,
    events_problem,
    find,
    words_of,
)
from gateway.patch.container import pool_variables, values_of
from gateway.patch.objects import ENDPOINT_KIND, Target, label
from gateway.patch.settings import (
    EXTRA_NAME,
    OPERATORS_URL,
    POD_NAME,
    URL_NAME,
    CannotPatch,
    Settings,
    has_own_tmp_dir,
)

_OVER = frozenset({"Succeeded", "Failed"})


def pods_of(target: Target, things: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pods among live objects that belong to a target and are not over."""
    labels = dict(target.labels)
    return [
        thing
        for thing in things
        if thing.get("kind") == "Pod"
        and _in_namespace(thing, target)
        and labels.items() <= ((thing["metadata"].get("labels")) or {}).items()
        and (thing.get("status") or {}).get("phase") not in _OVER
    ]


def owners_of(target: Target, things: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the live objects that are the target, or that the operator made of it."""
    made = "Deployment" if target.kind == ENDPOINT_KIND else target.kind
    return [
        thing
        for thing in things
        if thing.get("kind") in (made, target.kind)
        and (thing.get("metadata") or {}).get("name") == target.name
        and _in_namespace(thing, target)
    ]


def drift_of(
    thing: Mapping[str, Any], target: Target, settings: Settings, present: Sequence[Any]
) -> list[str]:
    """Return what a pod or a workload has not as it should, one line each.

    Args:
        thing: A live Pod or Deployment.
        target: What it belongs to.
        settings: What was to be written.
        present: Variables that the object sets itself.
    """
    spec = _pod_spec(thing)
    engines = [one for one in spec.get("containers") or [] if one["name"] == target.container]
    if not engines:
        names = ", ".join(one["name"] for one in spec.get("containers") or []) or "none"
        return [f"{label(thing)}: no container {target.container}, there are {names}"]
    engine = engines[0]
    found = [
        *_variables(engine.get("env") or [], settings, present),
        *_pool(spec, engine, settings),
        *_arguments(engine, operators=target.kind == ENDPOINT_KIND),
    ]
    return [f"{label(thing)}: {problem}" for problem in found]


def _in_namespace(thing: Mapping[str, Any], target: Target) -> bool:
    # A file that says no namespace means whichever the live objects were asked from.
    namespace = (thing.get("metadata") or {}).get("namespace", "")
    return not target.namespace or not namespace or namespace == target.namespace


def _pod_spec(thing: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = thing.get("spec") or {}
    if thing.get("kind") == "Pod":
        return spec
    return (spec.get("template") or {}).get("spec") or {}


def _variables(
    live: Sequence[Mapping[str, Any]], settings: Settings, present: Sequence[Any]
) -> Iterator[str]:
    names = [one["name"] for one in live]
    told = values_of(live)
    wanted = values_of(pool_variables(list(present), settings))
    ours = values_of(pool_variables([], settings))
    for name in ours:
        if name == EXTRA_NAME:
            continue
        if names.count(name) > 1:
            yield f"{name} is there {names.count(name)} times"
        elif name not in names:
            yield f"{name} is missing, should be {wanted[name]}"
        elif told.get(name) != wanted[name]:
            said = told.get(name, "taken from elsewhere")
            yield f"{name} is {said}, not {wanted[name]}{_whose(name, said)}"
    yield from _temporary(names, told)


def _whose(name: str, said: str) -> str:
    if name == URL_NAME and said.startswith(OPERATORS_URL):
        return " (the operator's own: without its daemon LMCache runs degraded, and says nothing)"
    return ""


def _temporary(names: list[str], told: Mapping[str, str]) -> Iterator[str]:
    try:
        extra = json.loads(told.get(EXTRA_NAME) or "{}")
    except ValueError:
        extra = {}
    if not isinstance(extra, dict) or not has_own_tmp_dir(extra):
        yield (
            f"{EXTRA_NAME} gives this pod no directory of its own for temporary files: equal "
            "prompts at two replicas at once fail to be stored (LMCache/LMCache#2517)"
        )
    elif f"$({POD_NAME})" in told[EXTRA_NAME] and (
        POD_NAME not in names or names.index(POD_NAME) > names.index(EXTRA_NAME)
    ):
        yield f"{POD_NAME} is not defined before {EXTRA_NAME}, which names it: kubelet leaves it so"


def _pool(spec: Mapping[str, Any], engine: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    claims = {
        volume["name"]: volume["persistentVolumeClaim"].get("claimName")
        for volume in spec.get("volumes") or []
        if volume.get("persistentVolumeClaim")
    }
    if settings.claim not in claims.values():
        yield f"no volume of claim {settings.claim}"
    mounts = {mount["mountPath"].rstrip("/"): mount for mount in engine.get("volumeMounts") or []}
    mount = mounts.get(settings.mount_path)
    if mount is None:
        yield f"nothing is mounted at {settings.mount_path}: LMCache would write into the container"
    elif claims.get(mount["name"]) != settings.claim:
        yield f"{settings.mount_path} is volume {mount['name']}, not claim {settings.claim}"
    elif mount.get("readOnly"):
        yield f"{settings.mount_path} is mounted read-only"


def _arguments(engine: Mapping[str, Any], *, operators: bool) -> Iterator[str]:
    try:
        words = words_of(engine)
        # How the operator loads LMCache is its own business; the counters tell whether it did.
        wrong = (events_problem(words), "" if operators else connector_problem(words))
        yield from filter(None, wrong)
        if find(words, DETAILS) is None:
            yield f"no {DETAILS}: what is predicted is never compared with what was cached"
    except CannotPatch as error:
        yield str(error)
