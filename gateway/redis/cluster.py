"""Which node of a cluster has a key. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from gateway.redis.address import Endpoint


def read_slots(reply: Sequence[Any], asked: Endpoint) -> dict[Endpoint, list[range]]:
    """Return the primaries and their slots, from the reply to `CLUSTER SLOTS`.

    Args:
        reply: Rows of first slot, last slot, the primary, and its replicas.
        asked: Who answered: a node that does not know its own name is that one.
    """
    ranges: dict[Endpoint, list[range]] = {}
    for first, last, primary, *_ in reply:
        host, port = primary[0], primary[1]
        endpoint = Endpoint(host.decode() if host else asked.host, int(port))
        ranges.setdefault(endpoint, []).append(range(first, last + 1))
    return ranges


def read_redirect(message: str, asked: Endpoint | None) -> Endpoint | None:
    """Return where a `MOVED slot host:port` or `ASK slot host:port` points to."""
    host, _, port = message.rsplit(" ", maxsplit=1)[-1].rpartition(":")
    if not port.isdigit():
        return None
    return Endpoint(host.strip("[]") or (asked.host if asked else ""), int(port))


def key_in(ranges: Sequence[range], prefix: str) -> str:
    """Return a key of one of these slots."""
    for number in range(REDIS_CLUSTER_HASH_SLOTS * 8):
        key = f"{prefix}:{number}"
        if any(key_slot(key.encode()) in slots for slots in ranges):
            return key
    return prefix
