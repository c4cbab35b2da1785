"""Variables, volumes and mounts of a container, as plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.patch.settings import (
    EXTRA_NAME,
    POD_NAME,
    POD_NAME_SOURCE,
    URL_NAME,
    CannotPatch,
    Settings,
    extra_config,
)

Plain = dict[str, Any]


def values_of(variables: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the variables that have a value of their own; of several with one name the last."""
    return {one["name"]: str(one["value"]) for one in variables if "value" in one}


def with_values(variables: Sequence[Plain], wanted: Mapping[str, str]) -> list[Plain]:
    """Return the variables with some values set, each name once, new ones at the end."""
    result: list[Plain] = []
    done: set[str] = set()
    for one in variables:
        name = one["name"]
        if name not in wanted:
            result.append(one)
        elif name not in done:
            done.add(name)
            same = "valueFrom" not in one and str(one.get("value")) == wanted[name]
            result.append(one if same else {"name": name, "value": wanted[name]})
    new = [{"name": name, "value": text} for name, text in wanted.items() if name not in done]
    return result + new


def pool_variables(variables: Sequence[Plain], settings: Settings) -> list[Plain]:
    """Return the variables of a container that reads and writes the pool.

    Raises:
        CannotPatch: POD_NAME is something else, or LMCACHE_EXTRA_CONFIG is no JSON.
    """
    present = values_of(variables)
    wanted = {
        EXTRA_NAME: extra_config(present.get(EXTRA_NAME)),
        URL_NAME: settings.url,
        **settings.shared_variables(present),
    }
    return _with_pod_name(with_values(variables, wanted))


def _with_pod_name(variables: list[Plain]) -> list[Plain]:
    """Define POD_NAME before the variable that names it: kubelet expands no later ones."""
    names = [one["name"] for one in variables]
    user = names.index(EXTRA_NAME)
    ours = {"name": POD_NAME, "valueFrom": dict(POD_NAME_SOURCE)}
    if POD_NAME not in names:
        return [*variables[:user], ours, *variables[user:]]
    at = names.index(POD_NAME)
    field = (variables[at].get("valueFrom") or {}).get("fieldRef") or {}
    if field.get("fieldPath") != "metadata.name":
        raise CannotPatch(f"env {POD_NAME} is something else than the pod's name: rename it")
    if at < user:
        return variables
    moved = [one for one in variables if one["name"] != POD_NAME]
    user = [one["name"] for one in moved].index(EXTRA_NAME)
    return [*moved[:user], variables[at], *moved[user:]]


def with_volume(volumes: Sequence[Plain], settings: Settings) -> list[Plain]:
    """Return a pod's volumes with the pool among them.

    Raises:
        CannotPatch: The volume's name is taken.
    """
    for volume in volumes:
        if volume["name"] == settings.volume:
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim != settings.claim:
                what = f"claim {claim}" if claim else "no claim"
                raise CannotPatch(
                    f"volumes: {settings.volume} is there with {what}, not {settings.claim}: "
                    "give --pvc, or another --volume"
                )
            return list(volumes)
    return [*volumes, pool_volume(settings)]


def with_mount(mounts: Sequence[Plain], settings: Settings) -> list[Plain]:
    """Return a container's mounts with the pool among them.

    Raises:
        CannotPatch: Something else is mounted there, or the pool is elsewhere.
    """
    for mount in mounts:
        same_path = mount["mountPath"].rstrip("/") == settings.mount_path
        if same_path and mount["name"] == settings.volume:
            if mount.get("readOnly"):
                raise CannotPatch(f"volumeMounts: {settings.mount_path} is read-only")
            return list(mounts)
        if same_path:
            raise CannotPatch(
                f"volumeMounts: {settings.mount_path} is taken by volume {mount['name']}: "
                "give another --mount-path"
            )
        if mount["name"] == settings.volume:
            raise CannotPatch(
                f"volumeMounts: {settings.volume} is mounted at {mount['mountPath']}: "
                "give that as --mount-path"
            )
    return [*mounts, pool_mount(settings)]


def pool_volume(settings: Settings) -> Plain:
    """Return the volume of the pool."""
    return {
        "name": settings.volume,
        "persistentVolumeClaim": {"claimName": settings.claim},
    }


def pool_mount(settings: Settings) -> Plain:
    """Return the mount of the pool."""
    return {"name": settings.volume, "mountPath": settings.mount_path}
