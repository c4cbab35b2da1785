"""Area F: the index in Redis when servers change, caches are cleared and fleets never stay."""

import time

import pytest

from tests.support.engines import Engine
from tests.support.event_fleets import SIZE, candidates, follows, holds, tokens
from tests.support.listed import write_list
from tests.support.publishers import CLEARED, Publisher, stored
from tests.support.replicas import until
from tests.support.several import sees, several

__all__ = ["several"]

# What must never be sent to a server that others use too (F124).
FORBIDDEN = {"keys", "scan", "flushall", "flushdb", "smembers", "config", "script", "monitor"}


@pytest.fixture
async def pair_of_gateways(several, engines, publishers):
    """Two gateways in front of one engine that publishes: `await pair_of_gateways(server)`."""

    async def start(server):
        (publisher,) = await publishers(Publisher())
        (replica,) = await engines(Engine(block_size=SIZE, sources={"0": publisher.source()}))
        gateways = await several(server, [replica])
        for gateway in gateways:
            await sees(gateway, 2)
            await until(lambda g=gateway: follows(g, replica), "step")
        return gateways, replica, publisher

    return start


async def all_hold(gateways, ids, replica, num_blocks):
    for gateway in gateways:
        await holds(gateway, ids, replica, num_blocks)


async def test_f122_writes_resume_where_the_primary_is_and_reads_go_on(pair_of_gateways, own_redis):
    server, other = own_redis(), own_redis()
    gateways, replica, publisher = await pair_of_gateways(server)
    await publisher.send(stored(range(1, 11), tokens(10)))
    await all_hold(gateways, tokens(10), replica, 10)
    server.command("REPLICAOF", "127.0.0.1", other.port)
    server.command("REPLICAOF", "NO", "ONE")
    began = time.monotonic()
    await publisher.send(stored(range(101, 106), tokens(5, 1000)))
    await all_hold(gateways, tokens(5, 1000), replica, 5)
    await all_hold(gateways, tokens(10), replica, 10)
    assert time.monotonic() - began < 10.0


async def test_f124_a_clear_costs_the_server_nothing(pair_of_gateways, own_redis):
    """Scaled: 20,000 blocks."""
    server = own_redis("--slowlog-log-slower-than", "10000")
    gateways, replica, publisher = await pair_of_gateways(server)
    for first in range(0, 20_000, 2000):
        base = first * SIZE
        await publisher.send(stored(range(first + 1, first + 2001), tokens(2000, base)))
    await all_hold(gateways, tokens(2000, 18_000 * SIZE), replica, 2000)
    server.command("CONFIG", "RESETSTAT")
    server.command("SLOWLOG", "RESET")
    await publisher.send(CLEARED)
    await all_hold(gateways, tokens(2000, 18_000 * SIZE), replica, 0)
    called = server.command("INFO", "commandstats")
    names = {name.removeprefix("cmdstat_").partition("|")[0] for name in called}
    assert not names & (FORBIDDEN - {"config"}), "config is this test's own"
    assert server.command("SLOWLOG", "LEN") == 0
    changes = sum(called.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hdel", "del"))
    assert changes < 100


async def test_f125_documents_that_come_and_go_leave_nothing(pair_of_gateways, own_redis):
    """Scaled: 20 documents of 500 blocks; what was cleared is swept by what is stored."""
    server = own_redis()
    gateways, replica, publisher = await pair_of_gateways(server)
    for number in range(20):
        ids = tokens(500, number * 500 * SIZE)
        await publisher.send(stored(range(1, 501), ids))
        await all_hold(gateways, ids, replica, 500)
        await publisher.send(CLEARED)
    await publisher.send(stored(range(1, 501), tokens(500)))
    await all_hold(gateways, tokens(500), replica, 500)
    for gateway in gateways:
        assert (await gateway.status())["index"]["L0"] <= 1000
        assert await gateway.metric("warmroute_index_queued_blocks") == 0


async def test_f127_generations_of_replicas_leave_nothing_behind(
    several, engines, publishers, own_redis, tmp_path
):
    """Scaled: 5 generations of 500 blocks that vanish without a word, entries live for 2 s."""
    server = own_redis()
    (staying,) = await engines(Engine(block_size=SIZE))
    listed = tmp_path / "replicas.yaml"
    write_list(listed, staying)
    model = {
        "name": "m",
        "discovery": [{"kind": "file", "path": str(listed), "interval_s": 0.02}],
    }
    (gateway,) = await several(server, [staying], 1, models=[model], index={"entry_ttl_s": 2.0})
    for generation in range(5):
        (publisher,) = await publishers(Publisher())
        (engine,) = await engines(Engine(block_size=SIZE, sources={"0": publisher.source()}))
        ids = tokens(500, generation * 500 * SIZE)
        publisher.keep(stored(range(1, 501), ids))
        write_list(listed, staying, engine)
        await until(lambda e=engine: _is_there(gateway, e), "the next generation")
        await holds(gateway, ids, engine, 500)
        write_list(listed, staying)
    await until(lambda: _num_segments(server) == 0, "all segments to expire")


async def _is_there(gateway, engine):
    return engine.name in await candidates(gateway, [1])


def _num_segments(server):
    return len(server.command("KEYS", "*:b:*"))


async def test_f127_a_full_memory_stops_writes_and_not_reads(pair_of_gateways, own_redis):
    server = own_redis("--maxmemory-policy", "noeviction")
    gateways, replica, publisher = await pair_of_gateways(server)
    await publisher.send(stored(range(1, 11), tokens(10)))
    await all_hold(gateways, tokens(10), replica, 10)
    server.command("CONFIG", "SET", "maxmemory", "1")
    await publisher.send(stored(range(101, 106), tokens(5, 1000)))
    (owner,) = [gateway for gateway in gateways if await _owns(gateway)]
    await holds(owner, tokens(5, 1000), replica, 5)
    await all_hold(gateways, tokens(10), replica, 10)
    server.command("CONFIG", "SET", "maxmemory", "0")
    await all_hold(gateways, tokens(5, 1000), replica, 5)


async def _owns(gateway):
    return bool(await gateway.metric("warmroute_kv_event_batches"))
