"""Simulated replicas, two gateways over them, and what both know."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loadtests.children import Child, Children
from loadtests.demo.fleet import MODEL, TOKENIZER
from loadtests.programs import fetch, simulator_argv, start_gateway
from loadtests.redis_chaos.traffic import NUM_TOPICS, question
from loadtests.rolling.fleet import exit_code, until

NUM_GATEWAYS: Final = 2
NUM_REPLICAS: Final = 3
# Engines so fast that what a request takes is the gateway's and the machine's.
_SPEED: Final = 50
_START_S: Final = 40.0
# Of all topics; each of these is looked up at each gateway.
_NUM_PROBES: Final = 8


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway."""

    child: Child
    url: str
    admin_url: str

    async def is_whole(self) -> bool:
        """Return whether all replicas are ready for it."""
        try:
            told = json.loads(await asyncio.to_thread(fetch, f"{self.admin_url}/admin/status"))
        except OSError:
            return False
        replicas = told["models"][0]["replicas"]
        return [one["state"] for one in replicas] == ["ready"] * NUM_REPLICAS

    async def knows(self, topic: int) -> Mapping[str, int]:
        """Return how many tokens of a topic each replica is confirmed to hold, as far as known."""
        body = json.dumps(question(topic, 0)).encode()
        told = json.loads(await asyncio.to_thread(fetch, f"{self.admin_url}/admin/explain", body))
        if told["rung"] != "precise":
            return {}
        return {one["replica"]: one["matched_tokens"]["confirmed_L0"] for one in told["candidates"]}


@dataclass(slots=True)
class Fleet:
    """Replicas that stay, and gateways that are fresh for each scenario."""

    children: Children
    urls: list[str] = field(default_factory=list)
    _num_started: int = 0

    async def start_replicas(self) -> None:
        """Start the replicas.

        Raises:
            ChildError: One did not start.
        """
        argv = simulator_argv(model=MODEL, tokenizer=TOKENIZER, speed=_SPEED)
        started = [self.children.start(f"replica-{n}", argv) for n in range(NUM_REPLICAS)]
        self.urls = [(await asyncio.to_thread(one.wait_ready))["url"] for one in started]

    async def start_gateways(self, index_url: str) -> list[Gateway]:
        """Start gateways that share a Redis; return them when all replicas are ready for each.

        Raises:
            ChildError: One did not start, or is not ready in time.
        """
        started = []
        for _ in range(NUM_GATEWAYS):
            self._num_started += 1
            name = f"gateway-{self._num_started}"
            started.append(start_gateway(self.children, name, self._config(index_url)))
        found = []
        for child in started:
            ready = await asyncio.to_thread(child.wait_ready)
            found.append(Gateway(child, ready["url"], ready["admin_url"]))
        for gateway in found:
            await until(gateway.is_whole, f"{gateway.child.name} is ready", _START_S)
        return found

    def _config(self, index_url: str) -> Mapping[str, Any]:
        replicas = [{"id": f"replica-{n}", "url": url} for n, url in enumerate(self.urls)]
        model = {"name": MODEL, "tokenizer": str(TOKENIZER), "replicas": replicas}
        return {"models": [model], "index": {"backend": "redis", "url": index_url}}


async def stop(gateways: Sequence[Gateway]) -> None:
    """End gateways, and wait until they have."""
    for gateway in gateways:
        gateway.child.kill()
        await exit_code(gateway.child)


async def agree(gateways: Sequence[Gateway]) -> bool:
    """Return whether all gateways know the same of the same topics, and of each topic something."""
    for topic in range(0, NUM_TOPICS, NUM_TOPICS // _NUM_PROBES):
        known = await asyncio.gather(*(gateway.knows(topic) for gateway in gateways))
        if any(one != known[0] for one in known) or not any(known[0].values()):
            return False
    return True
