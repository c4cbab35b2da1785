"""Fixtures of the cases: scripted replicas, gateways, raw clients, and a gateway as a process."""

import contextlib

import pytest

from tests.support.clients import RawClient
from tests.support.event_fleets import fleet, publishers
from tests.support.fixtures import chat, engines, gateways, replicas
from tests.support.processes import gateway_process

__all__ = [
    "chat",
    "engines",
    "fleet",
    "gateways",
    "processes",
    "publishers",
    "raw",
    "replicas",
]


@pytest.fixture
async def raw():
    """Open raw connections to a gateway's public listener: `await raw(gateway)`."""
    opened = []

    async def connect(gateway, **options):
        url = gateway.url if hasattr(gateway, "url") else gateway.gateway.url
        opened.append(await RawClient.open(url, **options))
        return opened[-1]

    yield connect
    for client in opened:
        client.leave()


@pytest.fixture
async def processes(tmp_path):
    """Start a gateway as a process: `await processes({"models": [...]}, environ)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(config, environ=None):
            return await stack.enter_async_context(gateway_process(tmp_path, config, environ))

        yield start
