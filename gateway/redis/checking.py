"""`warmroute check --connect`: what is at the other end, and what there will give trouble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.config.index import IndexConfig
from gateway.redis.address import Endpoint, Kind
from gateway.redis.errors import LinkError
from gateway.redis.node import Dialing
from gateway.redis.places import ask_once, find_primary, find_slots

# The first one with HELLO, ACLs and effects replication for all scripts.
MIN_MAJOR = 6
GOOD_POLICY = "volatile-lru"
"""Drops the entries that were not used for longest; what gateways agree on is used all the time."""

Said = tuple[list[str], int]
"""Lines to print, and how many problems are among them."""


async def look(config: IndexConfig, dialing: Dialing) -> Said:
    """Connect to Redis, and say what it is.

    Args:
        config: Of the index.
        dialing: As `dialing_of` makes it.
    """
    address = dialing.address
    shown = ", ".join(str(endpoint) for endpoint in address.endpoints)
    lines, num_problems = [f"  index in Redis at {shown}"], 0
    try:
        servers = await _servers(dialing)
    except LinkError as error:
        return [*lines, f"    problem: not reached ({error.reason})"], 1
    for endpoint in servers:
        try:
            told = _read(await ask_once(dialing, endpoint, "INFO"))
        except LinkError as error:
            lines.append(f"    server {endpoint}: problem: {error.reason}")
            num_problems += 1
            continue
        lines.append(f"    server {endpoint}: {_summary(told)}")
        problems = list(_problems(told, config, address.kind))
        lines += [f"      problem: {problem}" for problem in problems]
        num_problems += len(problems)
    return lines, num_problems


async def _servers(dialing: Dialing) -> list[Endpoint]:
    address = dialing.address
    if address.kind is Kind.CLUSTER:
        return list(await find_slots(dialing, address.endpoints))
    if address.kind is Kind.SENTINEL:
        return [await find_primary(dialing, address.endpoints, address.master)]
    return list(address.endpoints)


def _read(info: bytes) -> Mapping[str, str]:
    lines = (line.partition(":") for line in info.decode().splitlines())
    return {name: value for name, separator, value in lines if separator}


def _summary(told: Mapping[str, str]) -> str:
    version = told.get("valkey_version")
    name = f"Valkey {version}" if version else f"Redis {told.get('redis_version', 'unknown')}"
    limit = told.get("maxmemory_human", "0B")
    used = f"{told.get('used_memory_human', '?')} used"
    memory = f"{used} of {limit}" if limit != "0B" else f"{used}, no limit"
    mode = told.get("redis_mode", "unknown mode")
    return f"{name}, {mode}, {memory}, {told.get('maxmemory_policy', 'unknown policy')}"


def _problems(told: Mapping[str, str], config: IndexConfig, kind: Kind) -> Iterator[str]:
    major = told.get("redis_version", "").partition(".")[0]
    if major.isdigit() and int(major) < MIN_MAJOR:
        yield f"too old, version {MIN_MAJOR} or later is needed"
    if told.get("role") == "slave":
        yield "it is a replica and takes no writes, name the primary, or use redis+sentinel"
    if told.get("redis_mode") == "cluster" and kind is not Kind.CLUSTER:
        yield "it is a node of a cluster, use redis+cluster in index.url"
    policy = told.get("maxmemory_policy", GOOD_POLICY)
    if policy == "noeviction" and told.get("maxmemory", "0") != "0":
        yield f"when its memory is full all writes stop, set maxmemory-policy to {GOOD_POLICY}"
    if policy.endswith("-random"):
        yield f"{policy} may drop what gateways agree on, set maxmemory-policy to {GOOD_POLICY}"
    if config.lookup_timeout_s > config.reply_timeout_s:
        yield "index.reply_timeout_s is below index.lookup_timeout_s"
