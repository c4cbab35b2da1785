"""Area F: several gateways whose Redis goes away, and fleets whose members never stay."""

import asyncio
import threading
from pathlib import Path
from statistics import median

import pytest

from tests.support.engines import Engine
from tests.support.event_fleets import SIZE, follows, holds, tokens
from tests.support.listed import file_config, write_list
from tests.support.publishers import Publisher, removed, stored
from tests.support.replicas import until
from tests.support.several import sees, several

__all__ = ["several"]

CHAT = "/v1/chat/completions"


@pytest.fixture
async def publishing(engines, publishers):
    (publisher,) = await publishers(Publisher())
    (replica,) = await engines(Engine(block_size=SIZE, sources={"0": publisher.source()}))
    return replica, publisher


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def redis_states(gateway):
    return [line["state"] for line in gateway.log if line["event"] == "redis_state"]


async def test_f120_a_gateway_starts_without_redis_and_is_ready(
    several, own_redis, publishing, chat
):
    replica, publisher = publishing
    (gateway,) = await several(own_redis(start=False), [replica], 1)
    assert (await gateway.client.get("/readyz")).status_code == 200
    assert (await gateway.client.post(CHAT, json=chat())).status_code == 200
    await until(lambda: follows(gateway, replica), "its own stream")
    await publisher.send(stored([1, 2], tokens(2)))
    await holds(gateway, tokens(2), replica, 2)


async def test_f120_redis_that_stops_costs_no_request_and_comes_back_empty(
    several, own_redis, publishing, chat
):
    """Scaled: at most 100 requests a second for 3 s, Redis away for 1 s of them."""
    replica, publisher = publishing
    server = own_redis()
    gateways = await several(server, [replica])
    for gateway in gateways:
        await sees(gateway, 2)
        await until(lambda g=gateway: follows(g, replica), "step")
    await publisher.send(stored(range(1, 11), tokens(10)))
    for gateway in gateways:
        await holds(gateway, tokens(10), replica, 10)
    before = [len(redis_states(gateway)) for gateway in gateways]
    asking, places = [], asyncio.Semaphore(20)  # a slow machine gets fewer a second

    async def ask(number):
        answer = await gateways[number % 2].client.post(CHAT, json=chat(f"q{number}"))
        places.release()
        return answer.status_code

    for number in range(300):
        if number == 50:
            server.stop()
        if number == 100:
            await publisher.send(removed(9))  # what nobody in Redis will hear of
        if number == 150:
            server.start()
        await places.acquire()
        asking.append(asyncio.create_task(ask(number)))
        await asyncio.sleep(0.01)
    assert set(await asyncio.gather(*asking)) == {200}
    for gateway in gateways:
        await holds(gateway, tokens(10), replica, 8)
        await until(lambda g=gateway: follows(g, replica), "step")
        await sees(gateway, 2)
    for gateway, count in zip(gateways, before, strict=True):
        assert redis_states(gateway)[count:] == ["down", "up"], "one line a change of state"


async def test_f161_joining_and_leaving_again_and_again_leaves_nothing_behind(
    redis_server, gateways, engines, publishers, tmp_path
):
    """Scaled: 40 rounds in which engines that publish, with other adapters each time, come and go.

    Tasks, threads and open files are as many as after the first rounds.
    """
    new = await publishers(*[Publisher() for _ in range(3)])
    sources = [{"0": publisher.source()} for publisher in new]
    fleet = await engines(*(Engine(block_size=SIZE, sources=s) for s in sources))
    path = tmp_path / "replicas.json"
    write_list(path, *fleet)
    index = {"backend": "redis", "url": redis_server.url, "lookup_timeout_s": 1.0}
    gateway = await gateways(file_config(path, index=index))

    async def alone():
        states = await gateway.states()
        return states == ["ready"]

    async def all_follow():
        there = [r for m in (await gateway.status())["models"] for r in m["replicas"]]
        return len(there) == 3 and all(replica["follows_events"] for replica in there)

    counts = []
    for number in range(40):
        for replica in fleet:
            replica.models = [*replica.models[:1], {"id": f"ad{number}", "parent": "m"}]
        write_list(path, *fleet)
        await until(all_follow, "all three")
        write_list(path, fleet[0])
        await until(alone, "only the first")
        counts.append((len(asyncio.all_tasks()), threading.active_count(), open_files()))
    first, last = counts[5:15], counts[-10:]
    for kind in range(3):
        # A probe may be under way in any round; what stays behind would be one a round.
        assert median(c[kind] for c in last) <= median(c[kind] for c in first) + 3
    rows = redis_server.command("HGETALL", "{warmroute}:1:lives")
    assert sum(key.startswith(b"r:") for key in rows) <= 3
