"""What runs, from what `kubectl get -o yaml` wrote. Pure; `cluster.py` asks a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.patch.drift import owners_of, pods_of
from gateway.patch.objects import Target
from gateway.patch.yamltext import read, split


@dataclass(slots=True)
class Live:
    """What runs of one target.

    Attributes:
        owners: The workload, and the endpoint itself where it is among the objects.
        pods: Not over.
        pages: /metrics by the pod's name, of those that answered.
        silent: Why there is no page, by the pod's name.
    """

    owners: list[Mapping[str, Any]]
    pods: list[Mapping[str, Any]]
    pages: dict[str, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


class Unreachable(Exception):
    """The cluster does not answer, or refuses."""


def objects_in(stream: str) -> list[Mapping[str, Any]]:
    """Return the objects of a YAML or JSON text, those in lists one by one.

    Raises:
        CannotChange: It is no YAML.
    """
    found: list[Mapping[str, Any]] = []
    for part in split(stream):
        thing = read(part.text)
        if isinstance(thing, Mapping):
            items = thing.get("items")
            found += items if isinstance(items, list) else [thing]
    return found


def from_objects(target: Target, things: list[Mapping[str, Any]]) -> Live:
    """Return what of some objects belongs to a target."""
    return Live(owners_of(target, things), pods_of(target, things))
