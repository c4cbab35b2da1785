"""Fixtures of several folders: scripted replicas and gateways that end with the test."""

import contextlib

import pytest

from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig
from tests.support.gateways import all_ready, quick, running
from tests.support.replicas import ScriptedReplica, until


@pytest.fixture
async def replicas():
    """Start scripted replicas: `await replicas(script, script, ...)`."""
    started = []

    async def start(*scripts, **kwargs):
        new = [await ScriptedReplica(script, **kwargs).start() for script in scripts]
        started.extend(new)
        return new

    yield start
    for replica in started:
        await replica.stop()


@pytest.fixture
async def engines():
    """Start scripted engines or balancers: `await engines(Engine(), Engine())`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*new):
            for engine in new:
                await engine.start()
                stack.push_async_callback(engine.stop)
            return list(new)

        yield start


@pytest.fixture
async def gateways():
    """Start a gateway: `await gateways(config)` or `await gateways(replica, replica, ...)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*given, wait_ready=True, **changes):
            config = given[0] if isinstance(given[0], GatewayConfig) else None
            config = config or config_from_flags([replica.url for replica in given])
            gateway = await stack.enter_async_context(running(quick(config, **changes)))
            if wait_ready:
                await until(lambda: all_ready(gateway), "readiness of all replicas")
            return gateway

        yield start


@pytest.fixture
def chat():
    """Return the body of a chat."""

    def body(text="hello", **fields):
        return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}

    return body
