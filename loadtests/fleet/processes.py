"""The processes of one pass: simulated replicas, gateways, and the Redis that these share."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.children import Child, ChildError, Children, wait_until
from loadtests.demo.fleet import MODEL, PROFILE, SMALL_CACHE_BLOCKS, TOKENIZER
from loadtests.programs import environment, fetch, simulator_argv, start_gateway
from loadtests.redis_server import RedisServer
from loadtests.rolling.balancer import Backend, Balancer
from loadtests.rolling.fleet import until
from routing.lab.engine_profile import PROFILES

NUM_REPLICAS: Final = 8
# Engines at half speed: 8 of them are as busy with the demo's traffic as its 4 are, and two cores
# carry 14 processes. All times are twice as long, and the CPU that each request costs is not.
SPEED: Final = 0.5
_READY_S: Final = 40.0
# By how they ended, and those that the request did not wait for, or that failed.
_LOOKUPS: Final = re.compile(
    r'^warmroute_(?:index_lookups_total\{result="(\w+)"\}|lookup_(timeouts|failures)_total) (.+)$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass runs on.

    Attributes:
        url: Of the balancer before the gateways.
        gateways: Their processes.
        admin_urls: Of their admin listeners.
        replicas: The simulators.
        balancer: Has counted connections that no gateway took.
    """

    url: str
    gateways: tuple[Child, ...]
    admin_urls: tuple[str, ...]
    replicas: tuple[Child, ...]
    balancer: Balancer


@asynccontextmanager
async def running(num_gateways: int, folder: Path) -> AsyncIterator[Pass]:
    """Start fresh replicas and gateways; end them all afterwards.

    One gateway keeps its index in its own memory, several in a Redis of their own.

    Raises:
        ChildError: One of them did not start.
    """
    with Children(environment(), folder) as children:
        replicas = tuple(
            children.start(f"replica-{number}", _simulator_argv()) for number in range(NUM_REPLICAS)
        )
        urls = [replica.wait_ready()["url"] for replica in replicas]
        index: dict[str, Any] = {}
        if num_gateways > 1:
            server = RedisServer(children, "redis")
            server.start()
            index = {"backend": "redis", "url": server.url}
        config = _config(urls, index)
        gateways = tuple(
            start_gateway(children, f"gateway-{number}", config) for number in range(num_gateways)
        )
        ready = [gateway.wait_ready() for gateway in gateways]
        if not wait_until(lambda: all(_is_whole(one["admin_url"]) for one in ready), _READY_S):
            raise ChildError(f"not every gateway has all replicas ready; see {folder}")
        ports = [int(one["url"].rpartition(":")[2]) for one in ready]
        async with Balancer([Backend(port) for port in ports]) as balancer:
            await until(lambda: all(one.ready for one in balancer.backends), "all are in balance")
            admin_urls = tuple(one["admin_url"] for one in ready)
            yield Pass(balancer.url, gateways, admin_urls, replicas, balancer)


def num_lookups(admin_urls: Sequence[str]) -> Mapping[str, int]:
    """Return how many look-ups in the shared index gateways made, by how they ended."""
    found: Counter[str] = Counter()
    for admin_url in admin_urls:
        page = fetch(f"{admin_url}/metrics").decode()
        for result, given_up, number in _LOOKUPS.findall(page):
            found[result or given_up] += round(float(number))
    return found


def _config(replica_urls: Sequence[str], index: Mapping[str, Any]) -> Mapping[str, Any]:
    step = PROFILES[PROFILE].step
    model = {
        "name": MODEL,
        "policy": "fleet",
        "tokenizer": str(TOKENIZER),
        # What the router expects is what the slowed replicas take.
        "cost": {
            "prefill_token_s": step.prefill_token_s / SPEED,
            "prefill_pair_s": step.token_pair_s / SPEED,
            "decode_sequence_s": step.sequence_s / SPEED,
            "decode_kv_token_s": step.kv_token_s / SPEED,
        },
        "replicas": [
            {"id": f"replica-{number}", "url": url} for number, url in enumerate(replica_urls)
        ],
    }
    policies = {"fleet": {"kind": "expected_ttft"}}
    return {"policies": policies, "models": [model], "index": index}


def _simulator_argv() -> list[str]:
    # They stand for other machines, so their processes yield to the gateways and to Redis.
    return [
        "nice",
        *simulator_argv(
            profile=PROFILE,
            model=MODEL,
            tokenizer=TOKENIZER,
            num_blocks=SMALL_CACHE_BLOCKS,
            speed=SPEED,
        ),
    ]


def _is_whole(admin_url: str) -> bool:
    """Return whether a gateway has all replicas ready, and knows who follows their events."""
    try:
        replicas = json.loads(fetch(f"{admin_url}/admin/status"))["models"][0]["replicas"]
    except OSError:
        return False
    return [one["state"] for one in replicas] == ["ready"] * NUM_REPLICAS
