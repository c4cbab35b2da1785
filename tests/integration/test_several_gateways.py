"""Several gateways that share a real Redis: loads, holds, ejections, and a Redis that fails."""

import asyncio
import time

import httpx
import pytest

from gateway.redis.errors import LinkTimeout
from gateway.redis.link import RedisLink
from gateway.replicas.state import ELSEWHERE
from gateway.shared import pace
from tests.support.api_replicas import ApiReplica, KeepsResponses
from tests.support.fixtures import engines
from tests.support.replicas import Held, until
from tests.support.several import (
    as_flags,
    gateway_processes,
    gateways_seen,
    owned,
    sees,
    several,
    state_of,
)

__all__ = ["engines", "gateway_processes", "several"]

CHAT = {"model": "m", "messages": [{"role": "user", "content": "the same beginning " * 50}]}


async def answers(conversation):
    await conversation.answer(b"{}")


def send(gateway, count=1, **headers):
    post = gateway.client.post
    return [
        asyncio.create_task(post("/v1/chat/completions", json=CHAT, headers=headers))
        for _ in range(count)
    ]


async def fleet_in_flight(gateway, replica):
    return await gateway.metric(
        f'warmroute_replica_fleet_in_flight_requests{{replica="{replica.name}"}}'
    )


async def all_replicas_are_owned_by(gateways, count):
    async def condition():
        return sum([await owned(gateway) for gateway in gateways]) == count

    await until(condition, f"{count} owned replicas")


# Loads


async def test_each_gateway_sees_the_load_of_the_others_as_long_as_they_are_there(
    several, redis_server, replicas
):
    held = Held()
    (replica,) = await replicas(held)
    a, b = await several(redis_server, [replica])
    sent = send(a, 3)

    async def seen():
        return await fleet_in_flight(b, replica) == 3

    await until(seen, "the load of the other gateway")
    # A stream that lasts is told again with each tick, and never runs out.
    began = time.monotonic()
    await until(lambda: time.monotonic() > began + 1.3, "more than the life of a word")
    await until(seen, "the load of the other gateway, still")
    assert (await b.replica(replica.name))["in_flight"] == 0, "the status tells its own"
    held.go.set()
    await asyncio.gather(*sent)

    async def gone():
        return await fleet_in_flight(b, replica) == 0

    await until(gone, "the end of that load")


async def test_a_request_is_placed_by_what_another_gateway_placed_a_moment_before(
    several, redis_server, replicas, monkeypatch
):
    held = Held()
    one, two = both = await replicas(held, held)
    least_loaded = {"default": {"kind": "least_loaded"}}
    gateways = await several(redis_server, both, policies=least_loaded)
    for gateway in gateways:
        await sees(gateway, 2)
    # What they exchange by the clock comes too late for this.
    for name, slow_s in (("INTERVAL_S", 0.3), ("BUSY_INTERVAL_S", 0.3), ("SILENT_AFTER_S", 60.0)):
        monkeypatch.setattr(pace, name, slow_s)
    # What was heard a few milliseconds ago counts as recent, and longer where ticks take long.
    monkeypatch.setattr(pace.Pace, "_least_s", lambda _: 0.0)

    def is_told():
        (table,) = redis_server.command("KEYS", "*gateways*")
        words = b"".join(redis_server.command("HVALS", table))
        return any(replica.name.encode() in words for replica in both)

    for number in range(6):
        await until(lambda: not is_told(), "the end of the requests before")
        first, second = gateways if number % 2 else reversed(gateways)
        sent = send(first)
        await until(is_told, "what the first one placed")
        sent += send(second)
        total = 2 * (number + 1)
        await until(lambda n=total: len(one.received) + len(two.received) == n, "both requests")
        assert len(one.received) == len(two.received)
        held.go.set()
        await asyncio.gather(*sent)
        held.go.clear()


@pytest.mark.alone
async def test_the_load_of_a_gateway_that_is_gone_goes_within_its_ttl(
    several, own_redis, replicas, gateway_processes
):
    held = Held()
    (replica,) = await replicas(held)
    server = own_redis()
    dying = await gateway_processes(as_flags(server, [replica]))
    (gateway,) = await several(server, [replica], 1)
    async with httpx.AsyncClient(base_url=dying.url) as client:
        sent = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))

        async def seen():
            return await fleet_in_flight(gateway, replica) == 1

        await until(seen, "its load")
        dying.process.kill()
        killed = time.monotonic()

        async def gone():
            return await fleet_in_flight(gateway, replica) == 0

        await until(gone, "the end of its load", within_s=3.0)
        assert time.monotonic() - killed < 1.6, "1 s, and what it takes to look"
        held.go.set()
        with pytest.raises(httpx.HTTPError):
            await sent


# What operators say, and ejections


@pytest.mark.alone
async def test_what_an_operator_says_to_one_gateway_counts_at_all_within_a_second(
    several, redis_server, replicas
):
    fleet = await replicas(answers, answers)
    a, b = await several(redis_server, fleet)
    for gateway in (a, b):
        await sees(gateway, 2)
    name = fleet[0].name

    async def is_at_b(state):
        return await state_of(b, fleet[0]) == state

    began = time.monotonic()
    told = (await a.admin.post(f"/admin/replicas/{name}/cordon", json={"reason": "t1"})).json()
    await until(lambda: is_at_b("cordoned"), "the hold at the other gateway")
    await b.admin.put(f"/admin/replicas/{name}/weight", json={"weight": 0.5})
    await b.admin.post(f"/admin/replicas/{name}/uncordon")

    async def is_back_at_a():
        there = await a.replica(name)
        return there["state"] == "ready" and there["weight"] == 0.5

    await until(is_back_at_a, "the end of the hold")
    assert time.monotonic() - began < 1.0
    assert told["hold"]["by"] in await gateways_seen(a), "who was told"


async def test_the_last_word_counts_although_the_one_before_was_stuck_in_a_paused_redis(
    several, own_redis, replicas
):
    """A server that goes on reads first what was sent to it before it stopped."""
    fleet = await replicas(answers, answers)
    server = own_redis()
    a, b = await several(server, fleet, index={"reply_timeout_s": 0.5})
    for gateway in (a, b):
        await sees(gateway, 2)
    name = fleet[0].name
    server.pause()
    num_lines = len(a.log)
    await a.admin.post(f"/admin/replicas/{name}/cordon")

    def gave_up():
        lines = [line for line in a.log[num_lines:] if line["event"] == "redis_state"]
        return any(line["state"] == "down" for line in lines)

    await until(gave_up, "the end of the connection")
    await a.admin.post(f"/admin/replicas/{name}/uncordon")
    said = time.monotonic()
    await until(lambda: time.monotonic() > said + 0.5, "some age of that word")
    server.resume()

    async def is_told():
        if not await is_heard(a):
            return False
        row = server.command("HGET", "{warmroute}:holds", f"r:{name}")
        return row[13:].startswith(b'["",')

    await until(is_told, "the last word in Redis")

    async def is_over():
        return [await state_of(gateway, fleet[0]) for gateway in (a, b)] == ["ready"] * 2

    await until(is_over, "the end of the hold")


async def test_the_last_word_counts_however_close_it_follows_one_that_is_stuck(
    several, own_redis, replicas, monkeypatch
):
    """What a gateway takes for the server's clock may be wrong by what a tick took."""
    call, ticked, stuck = RedisLink.call, asyncio.Event(), []

    async def over_a_changing_way(link, script, keys, args, deadline_s):
        if "cordoned" in str(args):
            stuck.append((link, script, keys, args, deadline_s))
            raise LinkTimeout
        while stuck:  # the server reads first what was sent first
            await call(*stuck.pop(0))
        if script.name == "exchange" and name not in args:
            await asyncio.sleep(0.3)
            ticked.set()
        return await call(link, script, keys, args, deadline_s)

    monkeypatch.setattr(RedisLink, "call", over_a_changing_way)
    fleet, server = await replicas(answers, answers), own_redis()
    name = fleet[0].name
    (a,) = await several(server, fleet, 1)
    await all_replicas_are_owned_by([a], 2)
    for _ in range(2):
        ticked.clear()
        await ticked.wait()
    await a.admin.post(f"/admin/replicas/{name}/cordon")
    await until(lambda: stuck, "the first word")
    await a.admin.post(f"/admin/replicas/{name}/uncordon")

    def is_told():
        row = server.command("HGET", "{warmroute}:holds", f"r:{name}")
        return row is not None and not stuck

    await until(is_told, "both words in Redis")
    assert server.command("HGET", "{warmroute}:holds", f"r:{name}")[13:].startswith(b'["",')
    assert await state_of(a, fleet[0]) == "ready"


async def test_a_hold_outlives_all_gateways(several, redis_server, replicas):
    fleet = await replicas(answers, answers)
    (a,) = await several(redis_server, fleet, 1)
    await sees(a, 1)
    await a.admin.post(f"/admin/replicas/{fleet[0].name}/drain")

    async def is_kept():
        return redis_server.command("HLEN", "{warmroute}:holds") == 2

    await until(is_kept, "the hold in Redis")
    a.gateway.stop()
    await a.task
    (b,) = await several(redis_server, fleet, 1, wait_ready=False)

    async def is_held():
        return await state_of(b, fleet[0]) == "draining"

    await until(is_held, "the hold")


async def test_what_one_gateway_ejects_is_avoided_by_all_until_it_is_well(
    several, redis_server, replicas
):
    fleet = await replicas(answers, answers)
    # Probes that seldom come: the other one would see it by itself after three of them.
    a, b = await several(redis_server, fleet, health={"interval_s": 2.0, "timeout_s": 1.0})
    for gateway in (a, b):
        await sees(gateway, 2)
    await fleet[0].stop()
    await asyncio.gather(*send(a, 8))
    assert (await a.replica(fleet[0].name))["state"] == "ejected"

    async def is_told():
        return (await b.replica(fleet[0].name))["reason"] == ELSEWHERE

    await until(is_told, "the ejection at the other gateway")
    await fleet[0].start(fleet[0].port)

    async def is_back():
        return [await state_of(gateway, fleet[0]) for gateway in (a, b)] == ["ready"] * 2

    await until(is_back, "both to see that it is well again")


# What only one replica has


async def test_a_response_made_through_one_gateway_is_found_through_another(
    several, own_redis, engines
):
    fleet = await engines(ApiReplica(KeepsResponses("a")), ApiReplica(KeepsResponses("b")))
    server = own_redis()
    a, b = await several(server, fleet)
    asked = {"model": "m", "input": "hello"}
    made = (await a.client.post("/v1/responses", json=asked)).json()["id"]
    assert (await b.client.get(f"/v1/responses/{made}")).json()["id"] == made
    server.stop()
    assert (await b.client.get(f"/v1/responses/{made}")).json()["id"] == made, "it knows by now"
    other = (await a.client.post("/v1/responses", json=asked)).json()["id"]
    assert (await b.client.get(f"/v1/responses/{other}")).status_code == 404


async def test_a_client_learns_no_id_before_the_other_gateways_can_know_it(
    several, own_redis, engines
):
    fleet = await engines(ApiReplica(KeepsResponses("a")), ApiReplica(KeepsResponses("b")))
    server = own_redis()
    a, b = await several(server, fleet)
    server.command("CLIENT", "PAUSE", "100", "WRITE")
    made = (await a.client.post("/v1/responses", json={"model": "m", "input": "hello"})).json()
    assert (await b.client.get(f"/v1/responses/{made['id']}")).json() == made


async def test_no_client_waits_long_for_the_other_gateways_to_know_an_id(
    several, own_redis, engines, monkeypatch
):
    # What nobody waits for may take as long as it likes.
    monkeypatch.setattr("gateway.shared.whereabouts.REMEMBER_DEADLINE_S", 60.0)
    fleet = await engines(ApiReplica(KeepsResponses("a")), ApiReplica(KeepsResponses("b")))
    server = own_redis()
    a, _ = await several(server, fleet, index={"lookup_timeout_s": 0.02, "reply_timeout_s": 60.0})
    server.command("CLIENT", "PAUSE", "60000", "WRITE")
    began = time.monotonic()
    made = await a.client.post("/v1/responses", json={"model": "m", "input": "hello"})
    assert made.status_code == 200
    assert time.monotonic() - began < 5.0
    server.command("CLIENT", "UNPAUSE")


async def test_a_response_is_continued_where_it_was_made_through_any_gateway(
    several, redis_server, engines
):
    fleet = await engines(*[ApiReplica(KeepsResponses(name)) for name in "abcd"])
    for gateway in (gateways := await several(redis_server, fleet)):
        first = {"model": "m", "input": "hello"}
        made = await gateway.client.post("/v1/responses", json=first)
        home = made.headers["x-warmroute-replica"]
        further = {"model": "m", "input": "and?", "previous_response_id": made.json()["id"]}
        for asked in 4 * gateways:
            answer = await asked.client.post("/v1/responses", json=further)
            assert answer.headers["x-warmroute-replica"] == home
            assert answer.headers["x-warmroute-reason"] == "session"


async def test_a_session_opened_through_one_gateway_is_kept_through_another(
    several, redis_server, replicas
):
    opened = b"x-amzn-sagemaker-new-session-id: s-1; Expires=2030-01-01T00:00:00Z\r\n"

    async def opens(conversation):
        asks = conversation.request.header(b"x-amzn-sagemaker-session-id") == b"NEW_SESSION"
        await conversation.answer(b"{}", extra=opened if asks else b"")

    fleet = await replicas(*[opens] * 4)
    a, b = await several(redis_server, fleet)
    (first,) = send(a, **{"x-amzn-sagemaker-session-id": "NEW_SESSION"})
    home = (await first).headers["x-warmroute-replica"]
    for _ in range(8):
        (again,) = send(b, **{"x-amzn-sagemaker-session-id": "s-1"})
        assert (await again).headers["x-warmroute-replica"] == home


# Without Redis


async def test_a_gateway_starts_and_serves_without_redis_and_joins_when_it_comes(
    several, own_redis, replicas
):
    fleet = await replicas(answers, answers)
    server = own_redis(start=False)
    a, b = await several(server, fleet)
    assert (await send(a)[0]).status_code == 200
    name = fleet[0].name
    await a.admin.post(f"/admin/replicas/{name}/cordon")
    await until(lambda: a.log and _told(a, "exchange_lost"), "a gateway alone")
    assert (await a.status())["gateways"]["alone"]
    server.start()
    for gateway in (a, b):
        await sees(gateway, 2)
    await all_replicas_are_owned_by((a, b), 2)

    async def is_held():
        return await state_of(b, fleet[0]) == "cordoned"

    await until(is_held, "what was said meanwhile")
    assert not (await a.status())["gateways"]["alone"]


@pytest.mark.parametrize("fault", ["wiped", "restarted", "paused"])
async def test_all_is_as_before_after_redis_was(several, own_redis, replicas, fault):
    fleet = await replicas(answers, answers, answers)
    server = own_redis()
    a, b = await several(server, fleet, index={"lookup_timeout_s": 0.2, "reply_timeout_s": 60.0})
    for gateway in (a, b):
        await sees(gateway, 2)
    await a.admin.post(f"/admin/replicas/{fleet[0].name}/cordon")

    async def is_held(gateway):
        return await state_of(gateway, fleet[0]) == "cordoned"

    await until(lambda: is_held(b), "the hold")
    await all_replicas_are_owned_by((a, b), 3)
    if fault == "wiped":
        server.wipe()
    elif fault == "restarted":
        server.stop()
        assert (await send(b)[0]).status_code == 200
        server.start()
    else:
        server.pause()
        began = time.monotonic()
        assert (await send(b)[0]).status_code == 200
        assert time.monotonic() - began < 5.0
        server.resume()

    async def is_whole():
        rows = server.command("HGETALL", "{warmroute}:1:lives")
        held = server.command("HLEN", "{warmroute}:holds")
        return sum(key.startswith(b"r:") for key in rows) == 3 and held == 2

    await until(is_whole, "owners and holds in Redis")
    for gateway in (a, b):
        await sees(gateway, 2)
        await until(lambda g=gateway: is_held(g), "the hold")
    await all_replicas_are_owned_by((a, b), 3)


async def test_a_server_that_takes_no_writes_costs_no_request(several, own_redis, replicas):
    fleet = await replicas(answers, answers)
    server = own_redis()
    (gateway,) = await several(server, fleet, 1)
    await sees(gateway, 1)
    await all_replicas_are_owned_by([gateway], 2)
    server.command("REPLICAOF", "127.0.0.1", 1)
    for _ in range(3):
        assert (await send(gateway)[0]).status_code == 200
    assert await owned(gateway) == 2, "what it knows is still what it knows"
    server.command("REPLICAOF", "NO", "ONE")

    await until(lambda: is_heard(gateway), "the exchange")


async def test_a_gateway_that_leaves_is_gone_at_once_and_the_other_takes_over(
    several, redis_server, replicas, monkeypatch
):
    monkeypatch.setattr("gateway.shared.exchange.LEASE_S", 60.0)  # nobody waits for its end
    fleet = await replicas(*[answers] * 4)
    a, b = await several(redis_server, fleet)
    for gateway in (a, b):
        await sees(gateway, 2)
    await all_replicas_are_owned_by((a, b), 4)
    a.gateway.stop()
    await a.task
    await all_replicas_are_owned_by([b], 4)
    await sees(b, 1)


async def is_heard(gateway):
    return (await gateway.status())["gateways"]["heard_s_ago"] < 0.5


def _told(gateway, event):
    return any(line["event"] == event for line in gateway.log)
