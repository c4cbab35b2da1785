"""What operators see of requests that wait for a place."""

import asyncio

from tests.support.replicas import until

CHAT = "/v1/chat/completions"


async def test_the_metrics_tell_who_has_a_place_and_who_waits(replicas, gateways, chat):
    release = asyncio.Event()

    async def script(conversation):
        await release.wait()
        await conversation.answer(b"{}")

    [replica] = await replicas(script)
    gateway = await gateways(replica, limits={"max_in_flight": 2, "queue_requests": 10})
    requests = [asyncio.create_task(gateway.client.post(CHAT, json=chat())) for _ in range(5)]

    async def has(admitted, queued):
        names = ("warmroute_admitted_requests", "warmroute_queued_requests")
        return [await gateway.metric(f"{name} ") for name in names] == [admitted, queued]

    await until(lambda: len(replica.received) == 2)
    await until(lambda: has(2, 3))
    release.set()
    assert [answer.status_code for answer in await asyncio.gather(*requests)] == [200] * 5
    assert await has(0, 0)
