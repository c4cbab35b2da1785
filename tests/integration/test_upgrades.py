"""Gateways of two releases, with different layouts, on one Redis during a rolling upgrade."""

import asyncio
import contextlib
import itertools
import json
import re

import pytest

from gateway.redis import layout
from tests.support.api_replicas import ApiReplica, KeepsResponses
from tests.support.engines import Engine
from tests.support.event_fleets import SIZE, follows, holds, publishers, tokens
from tests.support.fixtures import engines
from tests.support.publishers import Publisher, removed, stored
from tests.support.replicas import until
from tests.support.several import gateways_seen, owned, sees, several, state_of

__all__ = ["engines", "publishers", "several"]

TODAY, NEXT = layout.LAYOUT, layout.LAYOUT + 1


@pytest.fixture
async def releases(several, monkeypatch):
    """Start two gateways of today's layout and one of the next: `await releases(server, fleet)`."""

    async def start(server, fleet):
        old = await several(server, fleet, 2)
        monkeypatch.setattr(layout, "LAYOUT", NEXT)
        (new,) = await several(server, fleet, 1)
        for gateway in old:
            await sees(gateway, 2)
        await sees(new, 1)
        return old, new

    return start


@contextlib.asynccontextmanager
async def traffic(*gateways):
    """Send prompts through all of these, one after the other at each; give what was answered."""
    answered, running = [], True

    async def send(gateway):
        for number in itertools.count():
            if not running:
                return
            body = {"model": "m", "prompt": tokens(1 + number % 20)}
            response = await gateway.client.post("/v1/completions", json=body)
            answered.append(response.status_code)

    tasks = [asyncio.create_task(send(gateway)) for gateway in gateways]
    try:
        yield answered
    finally:
        running = False
        await asyncio.gather(*tasks)


def refusals(page):
    """What Redis answered with an error, and not too late or before it was there."""
    failures = [x for x in page.splitlines() if x.startswith("warmroute_redis_failures_total{")]
    return [line for line in failures if not re.search('reason="(down|timeout)"', line)]


async def test_layouts_share_replicas_and_a_redis_and_read_nothing_of_each_other(
    releases, own_redis, engines, publishers
):
    first, second = await publishers(Publisher(), Publisher())
    fleet = await engines(
        *(Engine(block_size=SIZE, sources={"0": p.source()}) for p in (first, second))
    )
    server = own_redis()
    old, new = await releases(server, fleet)

    async def each_layout_owns_all():
        return (sum([await owned(g) for g in old]), await owned(new)) == (2, 2)

    async with traffic(*old, new) as answered:
        await until(each_layout_owns_all, "owners of both layouts")
        for gateway in (*old, new):
            await until(lambda g=gateway: follows(g, fleet[0]), "step")
        await first.send(stored(range(1, 31), tokens(30)))
        for gateway in (*old, new):
            await holds(gateway, tokens(30), fleet[0], 30)
        await first.send(removed(25))
        for gateway in (*old, new):
            await holds(gateway, tokens(30), fleet[0], 24)
        sent = len(answered)
        await until(lambda: len(answered) > sent + 50, "traffic")
    assert set(answered) == {200}
    ids = {NEXT: await gateways_seen(new), TODAY: await gateways_seen(old[0])}
    assert not set(ids[NEXT]) & set(ids[TODAY])
    for number, there in ids.items():
        told = server.command("HKEYS", f"{{warmroute}}:{number}:gateways")
        assert {name.decode() for name in told} == set(there)
        rows = server.command("HGETALL", f"{{warmroute}}:{number}:lives")
        owners = {row.split()[1].decode() for name, row in rows.items() if name[:2] == b"r:"}
        assert owners <= set(there)
        blocks = f"warmroute:{number}:b:*"
        await until(lambda pattern=blocks: server.command("KEYS", pattern), "blocks of both")
    for gateway in (*old, new):
        assert not [line for line in gateway.log if line["event"].endswith(("crashed", "failed"))]
        page = (await gateway.admin.get("/metrics")).text
        assert refusals(page) == []


async def test_a_cordon_holds_for_both_layouts_and_is_there_when_the_first_is_gone(
    releases, own_redis, engines
):
    fleet = await engines(Engine(), Engine(), Engine())
    old, new = await releases(own_redis(), fleet)
    for replica, told, heard in ((fleet[0], old[0], new), (fleet[1], new, old[1])):
        await told.admin.post(f"/admin/replicas/{replica.name}/cordon")

        async def is_held(gateway=heard, replica=replica):
            return await state_of(gateway, replica) == "cordoned"

        await until(is_held, "the hold of another release")
    for gateway in old:
        gateway.gateway.stop()
        await gateway.task
    await new.admin.post(f"/admin/replicas/{fleet[1].name}/uncordon")
    states = [await state_of(new, replica) for replica in fleet]
    assert states == ["cordoned", "ready", "ready"]


async def test_a_stored_response_is_found_after_the_upgrade(releases, own_redis, engines):
    fleet = await engines(ApiReplica(KeepsResponses("a")), ApiReplica(KeepsResponses("b")))
    old, new = await releases(own_redis(), fleet)
    asked = {"model": "m", "input": "hello"}
    made = (await old[0].client.post("/v1/responses", json=asked)).json()["id"]
    for gateway in old:
        gateway.gateway.stop()
        await gateway.task
    answer = await new.client.get(f"/v1/responses/{made}")
    assert json.loads(answer.content)["id"] == made
