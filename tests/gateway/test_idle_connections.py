"""Client connections that are kept: how long, and what does not count as idle."""

import asyncio
from unittest import mock

import pytest

from tests.support.replicas import until

IDLE_S = 0.3
REQUEST = b"GET /livez HTTP/1.1\r\nhost: gw\r\n\r\n"
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(CHAT), CHAT)
)


@pytest.fixture(autouse=True)
def short():
    with mock.patch("gateway.server.KEEP_ALIVE_S", IDLE_S):
        yield


async def connect(gateway):
    port = int(gateway.gateway.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port)


async def answers(conversation):
    await conversation.answer(b"{}")


async def test_an_idle_connection_is_closed_after_its_time_and_not_before(replicas, gateways):
    gateway = await gateways(*await replicas(answers))
    reader, writer = await connect(gateway)
    loop = asyncio.get_running_loop()
    for _ in range(3):  # each answer starts the time again
        writer.write(REQUEST)
        assert b"alive" in await reader.readuntil(b"}")
        answered_at = loop.time()
        await asyncio.sleep(IDLE_S / 2)  # the time itself is what is tested
    assert await reader.read() == b""
    assert IDLE_S <= loop.time() - answered_at + 0.01 < 3 * IDLE_S
    writer.close()


async def test_a_request_that_takes_longer_than_the_idle_time_is_not_idle(replicas, gateways):
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
    await asyncio.sleep(2 * IDLE_S)  # longer than an idle connection lives
    go_on.set()
    assert b'{"whole": 1}' in await reader.readuntil(b"}")
    assert await reader.read() == b"", "and then it is idle like any other"
    writer.close()
