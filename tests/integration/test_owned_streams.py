"""Each replica's KV events are followed by one gateway, for all: take-overs, pauses, restarts."""

import contextlib
import signal
import time

import httpx
import pytest

from gateway.shared.ownership import nearest_first
from routing.types import ReplicaId
from tests.support.engines import Engine
from tests.support.event_fleets import SIZE, follows, heard, holds, publishers, tokens
from tests.support.fixtures import engines
from tests.support.gateways import RunningGateway
from tests.support.publishers import CLEARED, Publisher, removed, stored
from tests.support.replicas import until
from tests.support.several import as_flags, gateway_processes, owned, sees, several

__all__ = ["engines", "gateway_processes", "publishers", "several"]

TAKEN_OVER_S = 5.0


@pytest.fixture
async def publishing(engines, publishers):
    """Start engines that publish: `await publishing(2)` -> their pairs."""

    async def start(count):
        new = await publishers(*[Publisher() for _ in range(count)])
        sources = [{"0": publisher.source()} for publisher in new]
        replicas = await engines(*(Engine(block_size=SIZE, sources=s) for s in sources))
        return list(zip(replicas, new, strict=True))

    return start


@pytest.fixture
async def owner(gateway_processes):
    """Start a gateway as a process, and wait until it owns all: `await owner(server, pairs)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(server, pairs):
            process = await gateway_processes(as_flags(server, [replica for replica, _ in pairs]))
            clients = [
                await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=10.0))
                for url in (process.url, process.admin_url)
            ]
            gateway = RunningGateway(None, *clients, [], None)
            await until(lambda: owns(gateway, len(pairs)), "the first gateway to own all")
            for replica, publisher in pairs:
                await heard(gateway, replica, publisher)
                await until(lambda r=replica: follows(gateway, r), "step")
            return process, gateway

        yield start


async def owns(gateway, count):
    return await owned(gateway) == count


async def test_one_gateway_follows_a_replica_and_all_route_by_what_it_hears(
    several, own_redis, publishing, monkeypatch
):
    monkeypatch.setattr("gateway.kvevents.subscriber.QUIET_S", 60.0)  # none asks a second time
    ((replica, publisher),) = await publishing(1)
    both = await several(own_redis(), [replica])
    for gateway in both:
        await sees(gateway, 2)
        await until(lambda g=gateway: follows(g, replica), "precise knowledge everywhere")
    num_owned = [await owned(gateway) for gateway in both]
    assert sorted(num_owned) == [0, 1]
    assert len(publisher.asked_from) == 1, "one subscriber"
    await heard(both[num_owned.index(1)], replica, publisher)
    await publisher.send(stored(range(1, 11), tokens(10)))
    for gateway in both:
        await holds(gateway, tokens(10), replica, 10)
        assert (await gateway.replica(replica.name))["block_size"] == SIZE
    await publisher.send(removed(7))
    for gateway in both:
        await holds(gateway, tokens(10), replica, 6)
    await publisher.send(CLEARED)
    for gateway in both:
        await holds(gateway, tokens(10), replica, 0)


@pytest.mark.alone
async def test_when_the_owner_is_killed_the_other_knows_all_again_within_5_s(
    several, own_redis, publishing, owner
):
    pairs = await publishing(2)
    server = own_redis()
    process, dying = await owner(server, pairs)
    (gateway,) = await several(server, [replica for replica, _ in pairs], 1)
    await sees(gateway, 2)
    for replica, publisher in pairs:
        await publisher.send(stored(range(1, 11), tokens(10)))
        await holds(dying, tokens(10), replica, 10)
    process.process.kill()
    killed = time.monotonic()
    for _, publisher in pairs:
        await publisher.send(removed(5), stored([21], tokens(1, 400), parent=3))
    for replica, _ in pairs:
        await holds(gateway, tokens(10), replica, 4)
        await holds(gateway, tokens(3) + tokens(1, 400), replica, 4)
        await until(lambda r=replica: follows(gateway, r), "step")
    assert time.monotonic() - killed < TAKEN_OVER_S
    assert await owned(gateway) == 2


@pytest.mark.alone
async def test_an_owner_that_was_paused_brings_nothing_old_back(
    several, own_redis, publishing, owner
):
    ((replica, publisher),) = await publishing(1)
    server = own_redis()
    process, paused = await owner(server, [(replica, publisher)])
    (gateway,) = await several(server, [replica], 1)
    await sees(gateway, 2)
    await publisher.send(stored(range(1, 11), tokens(10)))
    await holds(paused, tokens(10), replica, 10)
    await holds(gateway, tokens(10), replica, 10)
    # What it has not read yet is in its socket, and it works on that first when it comes back.
    process.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    await publisher.send(stored(range(31, 41), tokens(10, 500)))
    await publisher.send(removed(3), removed(*range(31, 41)))
    await holds(gateway, tokens(10), replica, 2)
    assert time.monotonic() - stopped < TAKEN_OVER_S
    process.process.send_signal(signal.SIGCONT)
    await sees(gateway, 2)
    await until(lambda: owns(paused, 0), "the old owner to see that it is none")
    for one in (gateway, paused):
        await holds(one, tokens(10), replica, 2)
        await holds(one, tokens(10, 500), replica, 0)
    await publisher.send(stored([51], tokens(1, 600)))
    for one in (gateway, paused):
        await holds(one, tokens(1, 600), replica, 1)


async def test_gateways_that_come_take_their_part_once_they_have_settled(
    several, own_redis, publishing, monkeypatch
):
    monkeypatch.setattr("gateway.shared.ownership.SETTLED_AFTER_S", 0.3)
    pairs = await publishing(6)
    replicas, server = [replica for replica, _ in pairs], own_redis()
    # Ids are by chance, and so is who is nearest to what: of 6 replicas, one of 3 gateways has
    # none in 26 of 100 runs, and the first keeps all of them in one of 700.
    first = await several(server, replicas, 1)
    await until(lambda: owns(first[0], 6), "the first one to own all")
    gateways = first + await several(server, replicas, 2)
    for gateway in gateways:
        await sees(gateway, 3)

    async def is_as_named():
        ids = [(await gateway.status())["gateways"]["id"] for gateway in gateways]
        nearest = [nearest_first(ReplicaId(replica.name), ids)[0] for replica in replicas]
        return [await owned(gateway) for gateway in gateways] == [nearest.count(i) for i in ids]

    await until(is_as_named, "each replica to be with the gateway that is nearest to it")
    for replica, publisher in pairs:
        await publisher.send(stored(range(1, 6), tokens(5)))
        for gateway in gateways:
            await holds(gateway, tokens(5), replica, 5)
            await until(lambda g=gateway, r=replica: follows(g, r), "step")


async def test_a_gateway_that_leaves_hands_over_without_a_wait(
    several, own_redis, publishing, monkeypatch
):
    monkeypatch.setattr("gateway.shared.exchange.LEASE_S", 60.0)  # nobody waits for its end
    pairs = await publishing(3)
    replicas = [replica for replica, _ in pairs]
    a, b = await several(own_redis(), replicas)
    for replica, publisher in pairs:
        for gateway in (a, b):
            await until(lambda g=gateway, r=replica: follows(g, r), "step")
        await publisher.send(stored(range(1, 6), tokens(5)))
    for replica in replicas:
        await holds(b, tokens(5), replica, 5)
    a.gateway.stop()
    await a.task
    await until(lambda: owns(b, 3), "all three")
    for replica in replicas:
        await holds(b, tokens(5), replica, 5)
        await until(lambda r=replica: follows(b, r), "step")


@pytest.mark.parametrize("fault", ["wiped", "restarted"])
async def test_an_empty_database_is_filled_again(several, own_redis, publishing, fault):
    ((replica, publisher),) = await publishing(1)
    server = own_redis()
    both = await several(server, [replica])
    for gateway in both:
        await until(lambda g=gateway: follows(g, replica), "step")
    await publisher.send(stored(range(1, 11), tokens(10)))
    for gateway in both:
        await holds(gateway, tokens(10), replica, 10)
    if fault == "wiped":
        server.wipe()
    else:
        server.stop()
        server.start()
    await publisher.send(removed(9))
    for gateway in both:
        await holds(gateway, tokens(10), replica, 8)
        await until(lambda g=gateway: follows(g, replica), "step")


async def test_a_restart_that_another_gateway_notices_empties_what_the_owner_knew(
    several, own_redis, publishing
):
    ((replica, publisher),) = await publishing(1)
    # Each learns of it at another time; whoever is first says so.
    both = await several(own_redis(), [replica])
    for gateway in both:
        await until(lambda g=gateway: follows(g, replica), "step")
    await publisher.send(stored(range(1, 11), tokens(10)))
    for gateway in both:
        await holds(gateway, tokens(10), replica, 10)
    publisher.buffer.clear()
    publisher.next_number = 0
    replica.restart()
    port = replica.port
    await replica.stop()
    await replica.start(port)
    for gateway in both:
        await holds(gateway, tokens(10), replica, 0)
    await publisher.send(stored([1], tokens(1)))
    for gateway in both:
        await holds(gateway, tokens(1), replica, 1)


async def test_without_redis_each_follows_all_and_with_it_they_divide_them(
    several, own_redis, publishing
):
    pairs = await publishing(2)
    server = own_redis(start=False)
    both = await several(server, [replica for replica, _ in pairs])
    for gateway in both:
        for replica, _ in pairs:
            await until(lambda g=gateway, r=replica: follows(g, r), "its own streams")
    for replica, publisher in pairs:
        await publisher.send(stored(range(1, 4), tokens(3)))
        for gateway in both:
            await holds(gateway, tokens(3), replica, 3)
    server.start()

    async def divided():
        return sum([await owned(gateway) for gateway in both]) == 2

    await until(divided, "each replica to have one owner")
    for replica, publisher in pairs:
        await publisher.send(removed(3))
        for gateway in both:
            await holds(gateway, tokens(3), replica, 2)
            # The one that is no owner any more may have to ask Redis a moment later.
            await holds(gateway, tokens(2), replica, 2)
