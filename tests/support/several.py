"""Several gateways in the test's loop that share one Redis."""

import contextlib
import itertools

import pytest

from gateway.config.load import config_from_flags
from tests.support.gateways import all_ready, quick, running
from tests.support.processes import gateway_process
from tests.support.replicas import until


def shared_config(server, replicas, **changes):
    """The configuration of a gateway that shares `server` with others."""
    index = _index(server) | changes.pop("index", {})
    return quick(config_from_flags([r.url for r in replicas]), index=index, **changes)


def as_flags(server, replicas):
    """The same as a file: block keys depend on the model's key, so both must have the same."""
    flags = config_from_flags([r.url for r in replicas])
    models = flags.model_dump(mode="json", exclude_defaults=True)["models"]
    return {"models": models, "index": _index(server)}


def _index(server):
    # On a busy machine that runs tests a look-up may take longer than one in earnest, and a server
    # that does not answer for half a second is no dead one.
    times = {"lookup_timeout_s": 1.0, "reply_timeout_s": 5.0}
    return {"backend": "redis", "url": server.url, **times}


async def gateways_seen(gateway):
    return (await gateway.status())["gateways"]["live"]


async def owned(gateway):
    return (await gateway.status())["gateways"]["owned"]


async def sees(gateway, count):
    async def condition():
        return len(await gateways_seen(gateway)) == count

    await until(condition, f"{count} gateways")


def is_connected(gateway):
    """Whether a gateway reached Redis: its replicas may be ready before that."""
    states = [line["state"] for line in gateway.log if line["event"] == "redis_state"]
    return "up" in states


async def state_of(gateway, replica):
    return (await gateway.replica(replica.name))["state"]


@pytest.fixture
async def several():
    """Start gateways that share a server: `await several(server, replicas, count=2)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(server, replicas, count=2, *, wait_ready=True, **changes):
            config = shared_config(server, replicas, **changes)
            started = [await stack.enter_async_context(running(config)) for _ in range(count)]
            for gateway in started if wait_ready else ():
                await until(lambda g=gateway: all_ready(g), "readiness")
                if server.process is not None:
                    await until(lambda g=gateway: is_connected(g), "its connection to Redis")
            return started

        yield start


@pytest.fixture
async def gateway_processes(tmp_path):
    """Start gateways as processes, to be killed and paused: `await gateway_processes(config)`."""
    async with contextlib.AsyncExitStack() as stack:
        number = itertools.count()

        async def start(config):
            folder = tmp_path / f"gateway{next(number)}"
            folder.mkdir()
            return await stack.enter_async_context(gateway_process(folder, config))

        yield start
