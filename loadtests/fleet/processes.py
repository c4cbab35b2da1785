"""The processes of one pass: simulated replicas, gateways, and the Redis that these share."""

import json
import re
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.demo.children import Child, ChildError, Children, wait_until
from loadtests.demo.fleet import MODEL, PROFILE, SMALL_CACHE_BLOCKS, TOKENIZER, environment
from loadtests.redis_server import RedisServer
from loadtests.rolling.balancer import Backend, Balancer
from loadtests.rolling.fleet import until
from routing.lab.engine_profile import PROFILES

NUM_REPLICAS: Final = 8
# Engines at half speed: 8 of them are as busy with the demo's traffic as its 4 are, and two cores
# carry 14 processes. All times are twice as long, and the CPU that each request costs is not.
SPEED: Final = 0.5
_READY_S: Final = 40.0
_TIMEOUT_S: Final = 5.0
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
        config = folder / "gateway.json"  # JSON is YAML
        config.write_text(json.dumps(_config(urls, index), indent=1), encoding="utf-8")
        argv = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config)]
        gateways = tuple(
            children.start(f"gateway-{number}", argv) for number in range(num_gateways)
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
        with urllib.request.urlopen(f"{admin_url}/metrics", timeout=_TIMEOUT_S) as page:  # noqa: S310 - our own
            for result, given_up, number in _LOOKUPS.findall(page.read().decode()):
                found[result or given_up] += round(float(number))
    return found


def _config(replica_urls: Sequence[str], index: Mapping[str, Any]) -> Mapping[str, Any]:
    loopback = {"host": "127.0.0.1", "port": 0}
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
    return {
        "listen": loopback,
        "admin": loopback,
        "policies": {"fleet": {"kind": "expected_ttft"}},
        "models": [model],
        "index": index,
    }


def _simulator_argv() -> list[str]:
    options = {
        "port": "0",
        "profile": PROFILE,
        "model": MODEL,
        "tokenizer": str(TOKENIZER),
        "num-blocks": str(SMALL_CACHE_BLOCKS),
        "speed": str(SPEED),
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    # They stand for other machines, so their processes yield to the gateways and to Redis.
    return ["nice", sys.executable, "-m", "loadtests.simulator", *flags]


def _is_whole(admin_url: str) -> bool:
    """Return whether a gateway has all replicas ready, and knows who follows their events."""
    try:
        with urllib.request.urlopen(  # noqa: S310 - our own gateway's
            f"{admin_url}/admin/status", timeout=_TIMEOUT_S
        ) as answer:
            replicas = json.load(answer)["models"][0]["replicas"]
    except OSError:
        return False
    return [one["state"] for one in replicas] == ["ready"] * NUM_REPLICAS
