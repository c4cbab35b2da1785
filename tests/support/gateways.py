"""A whole gateway in the test's own loop."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

import httpx

from gateway.config.models import GatewayConfig
from gateway.observability.logging import EventLog
from gateway.runtime import Gateway
from tests.support.replicas import WAIT_S, until

ANY_NUMBER = httpx.Limits(max_connections=None)


@dataclass
class RunningGateway:
    """A gateway and clients of both its listeners."""

    gateway: Gateway
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    log: list[dict]
    task: asyncio.Task

    async def status(self) -> dict:
        return (await self.admin.get("/admin/status")).json()

    async def replica(self, name: str) -> dict:
        replicas = [r for m in (await self.status())["models"] for r in m["replicas"]]
        return next(r for r in replicas if r["id"] == name)

    async def in_flight(self) -> int:
        models = (await self.status())["models"]
        return sum(replica["in_flight"] for model in models for replica in model["replicas"])

    async def states(self) -> list[str]:
        models = (await self.status())["models"]
        return [replica["state"] for model in models for replica in model["replicas"]]

    async def metric(self, line_start: str) -> float | None:
        page = (await self.admin.get("/metrics")).text
        line = next((x for x in page.splitlines() if x.startswith(line_start)), None)
        return None if line is None else float(line.rpartition(" ")[2])

    def requests(self) -> list[dict]:
        return [line for line in self.log if line["event"] == "request"]


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append({"event": record.getMessage(), **getattr(record, "fields", {})})

    def tell(self, event):
        return any(line["event"] == event for line in self.lines)


def quick(config: GatewayConfig, **changes) -> GatewayConfig:
    """A configuration on free ports that probes quickly."""
    values = config.model_dump()
    values["listen"] = {"host": "127.0.0.1", "port": 0}
    values["admin"] = {"host": "127.0.0.1", "port": 0}
    values["health"] = {"interval_s": 0.05, "timeout_s": 1.0}
    # On a busy machine 20 ms are a matter of luck; the deadline has tests of its own.
    values["prepare"]["timeout_s"] = 5.0
    # Whoever takes longer than a second meets the gateway's own questions at its replica, which
    # have tests of their own too.
    values["prepare"]["check_every"] = 0
    for name, change in changes.items():
        values[name] = {**values[name], **change} if isinstance(change, dict) else change
    return GatewayConfig.model_validate(values)


async def all_ready(running):
    return set(await running.states()) == {"ready"}


@contextlib.asynccontextmanager
async def running(config, *, wait_started=True, file=None):
    """Run a gateway; without waiting, its listeners may still answer that it starts."""
    lines = _Lines()
    logger = logging.getLogger(f"test.{id(lines)}")
    logger.setLevel("DEBUG")
    logger.propagate = False
    logger.addHandler(lines)
    gateway = Gateway(config, EventLog(logger), file)
    task = asyncio.create_task(gateway.run())
    try:
        if wait_started:
            await until(lambda: lines.tell("ready") or task.done(), "ready")
        async with (
            httpx.AsyncClient(base_url=gateway.url, timeout=WAIT_S, limits=ANY_NUMBER) as client,
            httpx.AsyncClient(base_url=gateway.admin_url, timeout=WAIT_S) as admin,
        ):
            yield RunningGateway(gateway, client, admin, lines.lines, task)
    finally:
        gateway.stop()
        await asyncio.wait_for(task, WAIT_S)
