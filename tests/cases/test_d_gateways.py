"""Area D with several gateways: what each sends counts for all."""

import asyncio
import contextlib
import itertools
from collections import Counter

import httpx

from tests.support.crews import CHAT, running_crew
from tests.support.replicas import until
from tests.support.several import sees, several

__all__ = ["several"]

# Requests that are there at once, on 4 replicas that all want the first of. Beside the bound one is
# allowed for each other gateway that places in the same moment. Gateways that count their own alone
# have 18 (two of them) and 24 (four) of the first 40 on one replica, each by its own slack; of 200
# they have no more than they may.
WAVES = (40, 200)


def assert_bounded(fullest, num_others):
    bounds = [1.5 * total / 4 + num_others for total in WAVES]
    assert all(most <= bound for most, bound in zip(fullest, bounds, strict=True)), fullest


async def test_d099_gateways_together_keep_the_bound_that_one_would(
    several, redis_server, replicas, chat
):
    """40 requests with the same beginning at once and 160 more, in turn through two gateways."""
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
    sent, fullest = [], []
    for total in WAVES:
        while len(sent) < total:
            post = next(turns).client.post("/v1/chat/completions", json=body)
            sent.append(asyncio.create_task(post))
        received = [replica.received for replica in fleet]
        await until(lambda t=total, r=received: sum(map(len, r)) == t, "all requests")
        fullest.append(max(map(len, received)))
    go.set()
    assert {answer.status_code for answer in await asyncio.gather(*sent)} == {200}
    assert_bounded(fullest, num_others=1)
    for gateway in gateways:
        name = "warmroute_gateways"
        assert await gateway.metric(f"{name} ") == 2, "the same page, whoever answers"


@contextlib.asynccontextmanager
async def crew_of_two(folder, config):
    """A gateway of two workers; starting and stopping it leaves turns to its replicas here."""
    folder.mkdir()
    crew = running_crew(folder, config)
    running = await asyncio.to_thread(crew.__enter__)
    try:
        yield running
    finally:
        await asyncio.to_thread(crew.__exit__, None, None, None)


def all_know_three_others(crew):
    joined = {(line["worker"], line["gateway"]) for line in crew.lines("gateway_joined")}
    return len(joined) == 2 * 3


async def test_d099_workers_of_several_gateways_together_keep_the_bound_that_one_would(
    redis_server, replicas, tmp_path
):
    """The same through two gateways of two workers each: four processes that decide."""
    go, held = asyncio.Event(), []

    async def script(conversation):
        if b"the same beginning" in conversation.request.body:
            held.append(conversation.writer.get_extra_info("sockname"))
            await go.wait()
        await conversation.answer(b"{}")

    fleet = await replicas(*[script] * 4)
    config = {
        "models": [{"name": "demo-model", "replicas": [{"url": one.url} for one in fleet]}],
        "index": {"backend": "redis", "url": redis_server.url, "lookup_timeout_s": 1.0},
    }
    async with (
        crew_of_two(tmp_path / "a", config) as a,
        crew_of_two(tmp_path / "b", config) as b,
        httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0)) as client,
    ):
        await until(lambda: all_know_three_others(a) and all_know_three_others(b), "all of them")
        message = {"role": "user", "content": "the same beginning " * 100}
        body = {"model": "demo-model", "messages": [message]}
        turns, sent, fullest = itertools.cycle((a, b)), [], []
        for total in WAVES:
            while len(sent) < total:
                post = client.post(next(turns).url + CHAT, json=body, timeout=60.0)
                sent.append(asyncio.create_task(post))
            await until(lambda t=total: len(held) == t, "all requests", within_s=60.0)
            fullest.append(max(Counter(held).values()))
        go.set()
        assert {answer.status_code for answer in await asyncio.gather(*sent)} == {200}
        assert_bounded(fullest, num_others=3)
        assert {line["worker"] for crew in (a, b) for line in crew.lines("request")} == {0, 1}
