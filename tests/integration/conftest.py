"""A gateway in the test's loop, in front of simulated replicas that are processes."""

import contextlib

import pytest

from gateway.config.load import config_from_flags
from tests.support.fixtures import chat, gateways, replicas
from tests.support.gateways import all_ready, quick, running
from tests.support.replicas import until
from tests.support.simulators import running_replica

__all__ = ["chat", "gateways", "replicas"]

MODEL = "loadtests/demo_model"


@pytest.fixture
def simulators():
    """Start simulators: `simulators("--speed", "20", count=2)`."""
    with contextlib.ExitStack() as stack:

        def start(*flags, count=1):
            return [stack.enter_context(running_replica(*flags)) for _ in range(count)]

        yield start


@pytest.fixture
async def gateway_for():
    """Start a gateway: `await gateway_for(replicas)`; ready and in step with all of them."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(replicas, **changes):
            config = quick(config_from_flags([r.url for r in replicas], MODEL), **changes)
            gateway = await stack.enter_async_context(running(config))
            await until(lambda: all_ready(gateway), "readiness")
            if all(replica.kv_events for replica in replicas):
                await until(lambda: _all_follow(gateway), "event streams")
            return gateway

        yield start


async def _all_follow(gateway):
    models = (await gateway.status())["models"]
    return all(r["follows_events"] for m in models for r in m["replicas"])
