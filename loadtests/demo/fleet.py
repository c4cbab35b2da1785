"""The demo fleet: simulated replicas and a gateway, each a process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from loadtests.children import Child, ChildError, Children, wait_until
from loadtests.measurement import ROOT
from loadtests.programs import environment, fetch, gateway_argv, simulator_argv

TOKENIZER: Final = ROOT / "loadtests" / "demo_model"
MODEL: Final = "demo"
# An A10G computes 3,200 prompt tokens a second: slow enough that a fleet of them is busy at rates
# which 2 cores can make.
PROFILE: Final = "a10g"
PREFILL_TOKENS_PER_S: Final = 1 / 0.31e-3
NUM_REPLICAS: Final = 4
# KV blocks of 16 tokens for the made traffic: a cache scaled down as the traffic is, so that half a
# minute of it fills the caches as hours fill real ones. An A10G has 5,120.
SMALL_CACHE_BLOCKS: Final = 2_200
# From "listens" to "may serve": tokenizer loaded, replicas probed, KV events subscribed.
_READY_DEADLINE_S: Final = 20.0
# One of two workers is missed by all of them once in 30,000 times.
_PROBES_A_WORKER: Final = 8


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running fleet.

    Attributes:
        url: The gateway's public listener.
        admin_url: Its admin listener.
        replicas: The simulators.
        children: All processes, the gateway too.
    """

    url: str
    admin_url: str
    replicas: tuple[Child, ...]
    children: Children


@contextmanager
def running(
    policy: str, folder: Path, num_blocks: int | None = None, workers: int = 1
) -> Iterator[Fleet]:
    """Start fresh replicas with empty caches and a gateway over them; end them all afterwards.

    Args:
        policy: Kind of the routing policy.
        folder: Where the logs and the gateway's configuration are written.
        num_blocks: KV blocks of a replica; the profile's own number by default.
        workers: Processes of the gateway.

    Raises:
        ChildError: One of them did not start.
    """
    with Children(environment(), folder) as children:
        replicas = tuple(
            children.start(f"replica-{number}", _simulator_argv(num_blocks))
            for number in range(NUM_REPLICAS)
        )
        urls = [replica.wait_ready()["url"] for replica in replicas]
        config = folder / "gateway.yaml"
        config.write_text(gateway_yaml(policy, urls), encoding="utf-8")
        gateway = children.start("gateway", gateway_argv(config, "--workers", str(workers)))
        ready = gateway.wait_ready()
        if not wait_until(lambda: _are_ready(ready["url"], workers), _READY_DEADLINE_S):
            raise ChildError(f"the gateway found no replica that is ready; see {gateway.log}")
        yield Fleet(ready["url"], ready["admin_url"], replicas, children)


def gateway_yaml(policy: str, replica_urls: Sequence[str]) -> str:
    """Return the gateway's configuration for these replicas."""
    loopback = {"host": "127.0.0.1", "port": 0}
    config = {
        "listen": loopback,
        "admin": dict(loopback),
        "policies": {"demo": {"kind": policy}},
        "models": [
            {
                "name": MODEL,
                "policy": "demo",
                "tokenizer": str(TOKENIZER),
                # What the router expects a prefill to take is what the replicas take.
                "cost": {"profile": PROFILE},
                "replicas": [
                    {"id": f"replica-{number}", "url": url}
                    for number, url in enumerate(replica_urls)
                ],
            }
        ],
    }
    return f"# Written by `make demo`.\n{yaml.safe_dump(config, sort_keys=False)}"


def _simulator_argv(num_blocks: int | None) -> list[str]:
    blocks = {} if num_blocks is None else {"num_blocks": num_blocks}
    return simulator_argv(profile=PROFILE, model=MODEL, tokenizer=TOKENIZER, **blocks)


def _are_ready(url: str, workers: int) -> bool:
    """Return whether all workers are: the kernel chooses one anew for each connection."""
    return all(_is_ready(url) for _ in range(1 if workers == 1 else _PROBES_A_WORKER * workers))


def _is_ready(url: str) -> bool:
    try:
        fetch(f"{url}/readyz")
    except OSError:  # URLError, and HTTPError for a 503, are OSErrors
        return False
    return True
