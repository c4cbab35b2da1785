"""Gateways whose replicas are those of a file, and a file that changes all the time."""

import asyncio
import contextlib
import itertools
import json

from gateway.config.models import GatewayConfig
from tests.support.gateways import quick


def file_config(path, **changes) -> GatewayConfig:
    """Return a configuration whose only replicas are those of a file."""
    section = {"kind": "file", "path": str(path), "interval_s": 0.02}
    model = {"name": "m", "discovery": [section]}
    return quick(GatewayConfig.model_validate({"models": [model]}), **changes)


def write_list(path, *replicas) -> None:
    """Put a new list in the place of the old one, as a discovery's file is best written."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps([replica.url for replica in replicas]))
    new.rename(path)


@contextlib.asynccontextmanager
async def churn(path, staying, coming, every_s=0.1):
    """While the block runs, one replica of `coming` after the other joins and leaves again."""

    async def go_on():
        for guest in itertools.cycle(coming):
            write_list(path, *staying, guest)
            await asyncio.sleep(every_s)
            write_list(path, *staying)
            await asyncio.sleep(every_s / 2)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        write_list(path, *staying)
