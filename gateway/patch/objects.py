"""Which objects are patched, where in them, and what their kind cannot say. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.patch.arguments import with_arguments
from gateway.patch.container import (
    Plain,
    pool_variables,
    values_of,
    with_mount,
    with_values,
    with_volume,
)
from gateway.patch.settings import URL_NAME, CannotPatch, Settings
from gateway.patch.shape import Endpoint, Workload, check
from routing.value import value

ENDPOINT_KIND = "InferenceEndpointConfig"
WORKLOAD_KINDS = frozenset({"Deployment", "StatefulSet"})
_GROUP = "inference.sagemaker.aws.amazon.com/"


@value
class Target:
    """An object whose pods are replicas.

    Attributes:
        kind: Its kind.
        name: Its name.
        namespace: Empty where it does not say one.
        labels: That its pods have.
        container: Name of the engine's container.
    """

    kind: str
    name: str
    namespace: str
    labels: tuple[tuple[str, str], ...]
    container: str

    @property
    def selector(self) -> str:
        """The labels as a selector."""
        return ",".join(f"{key}={text}" for key, text in self.labels)


@value
class Patched:
    """An object as it is to be.

    Attributes:
        target: Which one.
        wanted: All of it.
        notes: What is worth knowing, one line each.
    """

    target: Target
    wanted: Plain
    notes: tuple[str, ...] = ()


def label(thing: Any) -> str:
    """Return how people call an object: kind and name."""
    if not isinstance(thing, Mapping):
        return "no object"
    return f"{thing.get('kind', 'no kind')} {name_of(thing) or 'without a name'}"


def name_of(thing: Mapping[str, Any]) -> str:
    """Return an object's name; empty where it has none."""
    metadata = thing.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, Mapping) else ""


def is_candidate(thing: Any) -> bool:
    """Return whether an object is of a kind that can be patched."""
    if not isinstance(thing, Mapping):
        return False
    if thing.get("kind") == ENDPOINT_KIND:
        return str(thing.get("apiVersion", "")).startswith(_GROUP)
    return str(thing.get("kind")) in WORKLOAD_KINDS


def patch(thing: Plain, settings: Settings, container: str | None = None) -> Patched | None:
    """Return an object as it is to be, or None where no container of it runs vLLM.

    Args:
        thing: For which `is_candidate` holds.
        settings: What to write.
        container: The engine's; None finds it.

    Raises:
        CannotPatch: What stands there has to be changed by hand.
    """
    wanted = copy.deepcopy(thing)
    if thing["kind"] == ENDPOINT_KIND:
        return _patch_endpoint(wanted, settings)
    return _patch_workload(wanted, settings, container)


def _patch_workload(wanted: Plain, settings: Settings, name: str | None) -> Patched | None:
    check(wanted, Workload)
    template, selector = wanted["spec"]["template"], wanted["spec"].get("selector") or {}
    pod = template["spec"]
    engine = _engine(pod, name, name_of(wanted))
    if engine is None:
        return None
    engine["env"] = pool_variables(engine.get("env") or [], settings)
    engine["volumeMounts"] = with_mount(engine.get("volumeMounts") or [], settings)
    engine.update(with_arguments(engine, settings, connector=True))
    pod["volumes"] = with_volume(pod.get("volumes") or [], settings)
    selected = selector.get("matchLabels") or template["metadata"].get("labels") or {}
    notes = _config_file_notes(engine["env"])
    return Patched(_target(wanted, selected, engine["name"]), wanted, tuple(notes))


def _patch_endpoint(wanted: Plain, settings: Settings) -> Patched:
    check(wanted, Endpoint)
    spec = wanted["spec"]
    worker = spec["worker"]
    _refuse_own_server(spec)
    target = _target(wanted, {"app": name_of(wanted)}, name_of(wanted))
    notes = [
        f"its kind has no volumes, and its operator sets {URL_NAME}: --print kyverno adds both"
    ]
    present = worker.get("environmentVariables") or []
    if any(one["name"] == URL_NAME for one in present):
        # The operator adds its own one, and which of two wins is up to kubelet.
        present = [one for one in present if one["name"] != URL_NAME]
        notes.append(f"worker.environmentVariables: {URL_NAME} taken out, it would be there twice")
    shared = settings.shared_variables(values_of(present))
    worker["environmentVariables"] = with_values(present, shared)
    worker.update(with_arguments(worker, settings, connector=False))
    cache = spec["kvCacheSpec"] = spec.get("kvCacheSpec") or {}
    if not cache.get("enableL1Cache", True):
        notes.append("kvCacheSpec.enableL1Cache set: without it the operator starts no LMCache")
    cache["enableL1Cache"] = True
    notes += _endpoint_notes(spec, cache) + _config_file_notes(present)
    return Patched(target, wanted, tuple(notes))


def _refuse_own_server(spec: Mapping[str, Any]) -> None:
    # Operators from 3.7 on can run an LMCache server beside the engine (hyperpod-cli#464).
    for section in (spec, spec.get("kvCacheSpec") or {}, spec.get("worker") or {}):
        mode = (section.get("lmcache") or {}).get("mode")
        if mode == "MultiProcess":
            raise CannotPatch(
                "lmcache.mode is MultiProcess: its pool is an --l2-adapter of the LMCache server "
                f"beside the engine, which reads no {URL_NAME}"
            )


def _endpoint_notes(spec: Mapping[str, Any], cache: Mapping[str, Any]) -> list[str]:
    notes = []
    if cache.get("enableL2Cache"):
        notes.append(
            "kvCacheSpec.enableL2Cache is on: should the policy not apply, replicas use the "
            "operator's own pool and not this one"
        )
    if cache.get("cacheConfigFile"):
        notes.append("kvCacheSpec.cacheConfigFile is set: LMCache reads it before any variable")
    if (spec.get("intelligentRoutingSpec") or {}).get("enabled"):
        notes.append("intelligentRoutingSpec is on: two routers in a row undo each other's choices")
    return notes


def _config_file_notes(variables: Sequence[Mapping[str, Any]]) -> list[str]:
    if not any(one["name"] == "LMCACHE_CONFIG_FILE" for one in variables):
        return []
    return ["LMCACHE_CONFIG_FILE is set: see that the file says the same as the variables"]


def _engine(pod: Mapping[str, Any], name: str | None, owner: str) -> Plain | None:
    containers: list[Plain] = pod["containers"]
    names = [one["name"] for one in containers]
    if name is not None:
        if name not in names:
            raise CannotPatch(f"containers: no {name}, there are {', '.join(names) or 'none'}")
        return containers[names.index(name)]
    engines = [one for one in containers if _runs_vllm(one)]
    if len(engines) > 1:
        named = [one for one in engines if one["name"] == owner]
        if not named:
            found = ", ".join(one["name"] for one in engines)
            raise CannotPatch(f"containers: {found} all run vLLM: give --container")
        engines = named
    return engines[0] if engines else None


def _runs_vllm(container: Mapping[str, Any]) -> bool:
    words = [container.get("image", ""), *(container.get("command") or [])]
    return any("vllm" in str(word) for word in (*words, *(container.get("args") or [])))


def _target(wanted: Mapping[str, Any], labels: Mapping[str, str], container: str) -> Target:
    metadata = wanted["metadata"]
    return Target(
        kind=wanted["kind"],
        name=metadata["name"],
        namespace=metadata.get("namespace") or "",
        labels=tuple(labels.items()),
        container=container,
    )
