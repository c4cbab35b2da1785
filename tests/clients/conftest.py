"""Fixtures: gateways in the test's loop, scripted and simulated replicas behind them."""

import asyncio
import contextlib
import operator
from dataclasses import dataclass

import anthropic
import openai
import pytest

from gateway.config.load import config_from_flags
from tests.support.api_replicas import ApiReplica
from tests.support.fixtures import gateways
from tests.support.replicas import WAIT_S
from tests.support.simulators import running_replica

__all__ = ["gateways"]

SIMULATED_MODEL = "loadtests/demo_model"


@pytest.fixture
async def replicas():
    """Start scripted replicas: `await replicas(script, script, ...)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*scripts, kind=ApiReplica, **fields):
            new = [await kind(script, **fields).start() for script in scripts]
            for replica in new:
                stack.push_async_callback(replica.stop)
            return new

        yield start


@pytest.fixture(scope="session")
def simulator():
    """Run one simulated replica for all tests: they must not depend on what its cache holds."""
    with running_replica("--speed", "20") as replica:
        yield replica


@pytest.fixture
async def simulated(gateways, simulator):
    """Run a gateway that counts the simulator's tokens."""
    return await gateways(config_from_flags([simulator.url], SIMULATED_MODEL))


@dataclass
class Caller:
    """A client of an SDK, called in one way whether it waits or awaits."""

    client: object
    threaded: bool

    async def call(self, name, **arguments):
        """Call a method such as `chat.completions.create`."""
        method = operator.attrgetter(name)(self.client)
        if self.threaded:
            return await asyncio.to_thread(method, **arguments)
        return await method(**arguments)

    async def events(self, name, **arguments):
        """Return every event of a stream."""
        return [event async for event in self.each(name, **arguments)]

    async def events_until(self, kind, name, **arguments):
        """Return the events of a stream that breaks, and the error of this kind that it raises."""
        stream, seen = self.each(name, **arguments), []
        while True:
            try:
                seen.append(await anext(stream))
            except kind as error:
                return seen, error
            except StopAsyncIteration:
                pytest.fail("the stream ended as if nothing had happened")

    async def each(self, name, **arguments):
        """Yield events as they come."""
        opened = await self.call(name, stream=True, **arguments)
        if not self.threaded:
            async for event in opened:
                yield event
            return
        end = object()
        while (event := await asyncio.to_thread(next, opened, end)) is not end:
            yield event


@pytest.fixture(params=["async", "sync"])
async def openai_client(request):
    """Make clients of openai-python: `openai_client(gateway, api_key="k")`."""
    kinds = {"async": openai.AsyncOpenAI, "sync": openai.OpenAI}
    async for make in _clients(kinds[request.param], "/v1", request.param == "sync"):
        yield make


@pytest.fixture(params=["async", "sync"])
async def anthropic_client(request):
    """Make clients of Anthropic's SDK."""
    kinds = {"async": anthropic.AsyncAnthropic, "sync": anthropic.Anthropic}
    async for make in _clients(kinds[request.param], "", request.param == "sync"):
        yield make


async def _clients(kind, path, threaded):
    made = []

    def make(gateway, **options):
        # No retries unless a test is about them: they would hide what the first answer was.
        defaults = {"api_key": "sk-test", "max_retries": 0, "timeout": WAIT_S}
        client = kind(base_url=gateway.gateway.url + path, **{**defaults, **options})
        made.append(client)
        return Caller(client, threaded)

    yield make
    for client in made:
        closing = client.close()
        if closing is not None:
            await closing
