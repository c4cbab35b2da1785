"""One answer of the admin API from several workers' answers. Pure.

Each worker tells its own part of what goes on: its requests and its events. Where they tell of the
same replica the parts add up; all else is as the first one tells it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Told = Mapping[str, Any]

_ADDED = ("in_flight", "outstanding_prefill_s")
_ALL = ("drained",)
_ANY = ("follows_events",)
_DIGITS = 3  # as the parts are told


def merged(answers: Sequence[Told]) -> dict[str, Any]:
    """Return one answer.

    Args:
        answers: At least one, to the same question: the status, replicas, one replica, a reload or
            a flush.
    """
    first = answers[0]
    if "result" in first:
        return _reload(answers)
    if "models" in first and "index" in first:
        return _status(answers)
    if "id" in first:
        return _replica(answers)
    if "replicas" in first:
        return {**first, "replicas": _replicas([told["replicas"] for told in answers])}
    if "flushed" in first:
        return {**first, "flushed": _added([told["flushed"] for told in answers])}
    return dict(first)


def _added(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Each worker knows the pool by itself, and forgets what it knew."""
    return {name: sum(part.get(name, 0) for part in parts) for part in parts for name in part}


def _reload(answers: Sequence[Told]) -> dict[str, Any]:
    """One that changed something anywhere did so; a worker that started since saw nothing new."""
    changed = next((told for told in answers if told["result"] == "applied"), answers[0])
    return {**changed, "workers": [told["result"] for told in answers]}


def _status(answers: Sequence[Told]) -> dict[str, Any]:
    models = [
        _model([one for told in answers for one in told["models"] if one["key"] == model["key"]])
        for model in answers[0]["models"]
    ]
    index = {
        tier: sum(told["index"].get(tier, 0) for told in answers) for tier in answers[0]["index"]
    }
    return {**answers[0], "models": models, "index": index}


def _model(parts: Sequence[Told]) -> dict[str, Any]:
    replicas = _replicas([part["replicas"] for part in parts])
    routed = sum(part["routed"] for part in parts)
    return {**parts[0], "routed": routed, "skew": _skew(replicas), "replicas": replicas}


def _skew(replicas: Sequence[Told]) -> float:
    """As `gateway.fleet.FleetView.skew`, of what all have in flight."""
    ready = [replica for replica in replicas if replica["state"] == "ready"]
    total = sum(replica["in_flight"] for replica in ready)
    if not total:
        return 1.0
    highest = max(replica["in_flight"] / replica["weight"] for replica in ready)
    return round(float(highest * sum(replica["weight"] for replica in ready) / total), _DIGITS)


def _replicas(lists: Sequence[Sequence[Told]]) -> list[dict[str, Any]]:
    parts: dict[str, list[Told]] = {}
    for replicas in lists:
        for replica in replicas:
            parts.setdefault(replica["id"], []).append(replica)
    return [_replica(same) for same in parts.values()]


def _replica(parts: Sequence[Told]) -> dict[str, Any]:
    one = dict(parts[0])
    for name in _ADDED:
        if name in one:
            one[name] = round(sum(part.get(name, 0) for part in parts), _DIGITS)
    for names, of_all in ((_ALL, all), (_ANY, any)):
        one |= {
            name: of_all(part.get(name, False) for part in parts) for name in names if name in one
        }
    return one
