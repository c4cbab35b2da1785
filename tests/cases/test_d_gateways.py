"""Area D with several gateways: what each sends counts for all."""

import asyncio
import itertools

from tests.support.replicas import until
from tests.support.several import sees, several

__all__ = ["several"]


async def test_d099_gateways_together_keep_the_bound_that_one_would(
    several, redis_server, replicas, chat
):
    """200 requests with the same beginning at once, in turn through two gateways."""
    go = asyncio.Event()

    async def script(conversation):
        await go.wait()
        await conversation.answer(b"{}")

    fleet = await replicas(*[script] * 4)
    gateways = await several(redis_server, fleet)
    for gateway in gateways:
        await sees(gateway, 2)
    turns = itertools.cycle(gateways)
    body = chat("the same beginning " * 100)
    sent = [
        asyncio.create_task(next(turns).client.post("/v1/chat/completions", json=body))
        for _ in range(200)
    ]
    await until(lambda: sum(len(r.received) for r in fleet) == 200, "200 requests")
    # 1.5 of the mean of 50, and one that the other gateway places in the same moment.
    assert max(len(replica.received) for replica in fleet) <= 1.5 * 50 + 1
    go.set()
    assert {answer.status_code for answer in await asyncio.gather(*sent)} == {200}
    for gateway in gateways:
        name = "warmroute_gateways"
        assert await gateway.metric(f"{name} ") == 2, "the same page, whoever answers"
