"""Client connections that are kept: how long, and what does not count as idle."""

import asyncio

import pytest

from gateway.server import KEEP_ALIVE_S
from tests.support.replicas import until

REQUEST = b"GET /livez HTTP/1.1\r\nhost: gw\r\n\r\n"
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(CHAT), CHAT)
)
# Connections are closed by the clock of the event loop, so this may be small.
SHORTLY_S = 0.01


@pytest.fixture
async def pass_by(monkeypatch):
    """Let seconds pass for all timers of the event loop, and those run that are due."""
    loop = asyncio.get_running_loop()
    now, passed_s = loop.time, 0.0

    async def pass_by(seconds):
        nonlocal passed_s
        passed_s += seconds
        monkeypatch.setattr(loop, "time", lambda: now() + passed_s)
        for _ in range(3):  # a timer that is due runs in the next turn
            await asyncio.sleep(0)

    return pass_by


async def connect(gateway):
    port = int(gateway.gateway.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port)


async def answers(conversation):
    await conversation.answer(b"{}")


async def test_an_idle_connection_is_closed_after_its_time_and_not_before(
    replicas, gateways, pass_by
):
    gateway = await gateways(*await replicas(answers))
    reader, writer = await connect(gateway)
    for _ in range(3):  # each answer starts the time again
        writer.write(REQUEST)
        assert b"alive" in await reader.readuntil(b"}")
        await pass_by(KEEP_ALIVE_S - 10)
    await pass_by(10 + SHORTLY_S)
    assert await reader.read() == b""
    writer.close()


async def test_a_request_that_takes_longer_than_the_idle_time_is_not_idle(
    replicas, gateways, pass_by
):
    go_on = asyncio.Event()

    async def slow(conversation):
        await go_on.wait()
        await conversation.answer(b'{"whole": 1}')

    (replica,) = await replicas(slow)
    gateway = await gateways(replica)
    reader, writer = await connect(gateway)
    writer.write(REQUEST)
    await reader.readuntil(b"}")
    writer.write(POST)
    await until(lambda: replica.received)
    await pass_by(2 * KEEP_ALIVE_S)
    go_on.set()
    assert b'{"whole": 1}' in await reader.readuntil(b"}")
    await pass_by(KEEP_ALIVE_S + SHORTLY_S)
    assert await reader.read() == b"", "and then it is idle like any other"
    writer.close()
