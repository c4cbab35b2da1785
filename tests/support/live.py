"""A gateway that runs from a file which the test rewrites."""

import contextlib
import json
import os
from unittest import mock

import pytest

from gateway.config.load import load_config
from tests.support.gateways import all_ready, running
from tests.support.replicas import until

HERE = {"host": "127.0.0.1", "port": 0}
SOON_S = 0.01


def sections(*replicas, **given):
    models = [{"name": "m", "replicas": [{"url": replica.url} for replica in replicas]}]
    health = {"interval_s": 0.05, "timeout_s": 1.0}
    return {"listen": HERE, "admin": HERE, "health": health, "models": models, **given}


class Live:
    """A gateway that runs from a file which the test rewrites."""

    def __init__(self, gateway, path):
        self.gateway, self.client, self.admin = gateway, gateway.client, gateway.admin
        self.path = path

    def write(self, values):
        write(self.path, values)

    async def reload(self, values=None):
        if values is not None:
            self.write(values)
        return await self.admin.post("/admin/reload")

    def told(self, event):
        return [line for line in self.gateway.log if line["event"] == event]


def write(path, values):
    new = path.with_suffix(".new")
    new.write_text(values if isinstance(values, str) else json.dumps(values))  # JSON is YAML
    new.replace(path)


@pytest.fixture
async def live(tmp_path):
    """Start a gateway from a file: `await live(values)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(values, *, watched=False):
            path = tmp_path / "warmroute.yaml"
            write(path, values)
            interval_s = SOON_S if watched else 3600.0
            stack.enter_context(mock.patch("gateway.reload.LOOK_INTERVAL_S", interval_s))
            config = load_config(path, os.environ)
            gateway = await stack.enter_async_context(running(config, file=path))
            await until(lambda: all_ready(gateway), "readiness")
            return Live(gateway, path)

        yield start
