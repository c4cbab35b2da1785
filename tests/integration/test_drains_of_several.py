"""A drain waits for what gateways have in flight that cannot be heard for a while."""

import asyncio
import signal
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest

from gateway.shared.ownership import RETURN_S
from tests.support.replicas import Held, until
from tests.support.several import as_flags, gateway_processes, sees, several

__all__ = ["gateway_processes", "several"]

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
# Longer than a gateway's load counts when it tells none, and shorter than its lease.
SILENCE_S = 1.8


async def drain(gateway, replica, wait_s):
    path = f"/admin/replicas/{replica.name.replace(':', '%3A')}/drain"
    answer = await gateway.admin.post(path, params={"wait_s": wait_s})
    return answer.json()["drained"]


@contextmanager
def stopped(process):
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def request_elsewhere(gateway, other, replica):
    """Send a request through another gateway, of which this one knows."""
    async with httpx.AsyncClient(base_url=other.url) as client:
        sent = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))

        async def seen():
            shown = await gateway.replica(replica.name)
            return shown["fleet_in_flight"] == 1

        await until(seen, "the request elsewhere")
        yield sent


@pytest.mark.parametrize("who", ["the other gateway", "Redis"])
async def test_a_drain_is_not_over_while_a_gateway_with_a_request_cannot_be_heard(
    several, own_redis, replicas, gateway_processes, who
):
    held = Held()
    (replica,) = await replicas(held)
    server = own_redis()
    other = await gateway_processes(as_flags(server, [replica]))
    (gateway,) = await several(server, [replica], 1)
    silent = server.process if who == "Redis" else other.process
    async with request_elsewhere(gateway, other, replica) as sent:
        with stopped(silent):
            assert not await drain(gateway, replica, SILENCE_S)
        held.go.set()
        assert (await sent).status_code == 200
        assert await drain(gateway, replica, 10.0)


async def test_a_drain_is_not_over_before_the_others_came_back_to_a_redis_that_was_wiped(
    several, own_redis, replicas, gateway_processes
):
    held = Held()
    (replica,) = await replicas(held)
    server = own_redis()
    other = await gateway_processes(as_flags(server, [replica]))
    (gateway,) = await several(server, [replica], 1)
    async with request_elsewhere(gateway, other, replica) as sent:
        with stopped(other.process):  # as one whose next attempt to connect comes late
            server.wipe()
            await sees(gateway, 1)
            assert not await drain(gateway, replica, RETURN_S / 2)
        held.go.set()
        assert (await sent).status_code == 200
        assert await drain(gateway, replica, 10.0)
