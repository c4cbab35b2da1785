"""Calls while primaries change: Sentinel, a cluster's moved slots, and a lost node."""

import asyncio
from hashlib import sha1

from redis.crc import key_slot as slot_of

from gateway.redis import placing
from gateway.redis.address import Endpoint
from gateway.redis.cluster import key_in, read_redirect, read_slots
from gateway.redis.errors import LinkDown, LinkError
from gateway.redis.link import Call
from gateway.redis.node import LinkState
from gateway.redis.scripts import Script
from tests.support.redis_servers import LogLines, Sentinel, cluster_url, move_keys, move_slot
from tests.support.replicas import until


def script(text, *, writes=False):
    return Script("test", text.encode(), sha1(text.encode()).hexdigest().encode(), writes)


SET = script("return redis.call('SET', KEYS[1], ARGV[1])", writes=True)
GET = script("return redis.call('GET', KEYS[1])")


def test_a_key_is_found_for_any_slots():
    assert slot_of(key_in([range(100, 120)], "ns:probe").encode()) in range(100, 120)


def test_the_map_of_slots_names_primaries():
    asked = Endpoint("seed", 1)
    reply = [
        [0, 10, [b"a", 1, b"id"], [b"replica", 3, b"id"]],
        [11, 11, [None, 2, b"id"]],
        [12, 20, [b"a", 1, b"id", []]],
    ]
    assert read_slots(reply, asked) == {
        Endpoint("a", 1): [range(11), range(12, 21)],
        Endpoint("seed", 2): [range(11, 12)],
    }


def test_redirects_say_where_to():
    assert read_redirect("MOVED 1 [::1]:7", None) == Endpoint("::1", 7)
    assert read_redirect("ASK 1 :7", Endpoint("asked", 1)) == Endpoint("asked", 7)
    assert read_redirect("MOVED", None) is None


async def test_a_sentinel_names_the_primary_and_the_next_one(
    own_redis, redis_path, tmp_path, links
):
    primary, replica = own_redis(), own_redis()
    replica.command("REPLICAOF", "127.0.0.1", primary.port)
    # A sentinel asks a primary for its replicas when it comes, and then every 10 s.
    await until(lambda: primary.command("INFO", "replication")["connected_slaves"] == 1)
    sentinel = Sentinel(redis_path, tmp_path / "sentinel", primary)
    try:
        sentinel.start()
        log = LogLines()
        link = await links(sentinel.url, log=log)
        assert await link.call(SET, [b"k"], [1], 5.0) == b"OK"
        await until(lambda: sentinel.command("SENTINEL", "REPLICAS", "p"))
        primary.stop()
        await until(lambda: len(log.states()) > 1 and log.states()[-1] == "up", within_s=20)
        assert await link.call(SET, [b"k"], [2], 5.0) == b"OK"
        assert replica.command("GET", "k") == b"2"
        assert log.states() == ["up", "down", "up"]
        shown = {sample.labels["node"] for sample in link._metrics.state.collect()[0].samples}
        assert shown == {f"127.0.0.1:{replica.port}"}, "the old one is not down: it is not asked"
    finally:
        sentinel.stop()


async def test_a_cluster_that_is_not_there_yet_is_one_line_and_comes_by_itself(own_redis, links):
    server, log = own_redis("--cluster-enabled", "yes", start=False), LogLines()
    link = await links(cluster_url([server]), wait_up=False, log=log)
    await until(lambda: log.states() == ["down"])
    assert log.lines[0]["reason"] == "unreachable"
    assert link._metrics.state.labels(f"127.0.0.1:{server.port}", "down")._value.get() == 1
    server.start()
    server.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    await until(lambda: log.states()[-1] == "up")
    assert log.states() == ["down", "up"]
    shown = {tuple(s.labels.values()) for s in link._metrics.state.collect()[0].samples if s.value}
    assert shown == {(f"127.0.0.1:{server.port}", "up")}


async def test_calls_of_a_cluster_go_to_all_nodes_at_once(redis_cluster, links):
    link = await links(cluster_url(redis_cluster[:1]))
    keys = [b"many:%d" % number for number in range(60)]
    assert await link.call_many([Call(SET, [key], [key]) for key in keys], 5.0) == [b"OK"] * 60
    assert await link.call_many([Call(GET, [key], []) for key in keys], 5.0) == keys
    assert all(node.command("DBSIZE") > 0 for node in redis_cluster)


async def test_slots_that_move_are_followed(redis_cluster, links):
    slot = slot_of(b"{moving}")
    link = await links(cluster_url(redis_cluster))
    keys = [b"{moving}:%d" % number for number in range(20)]
    calls = [Call(GET, [key], []) for key in keys]
    await link.call_many([Call(SET, [key], [key]) for key in keys], 5.0)
    source = next(n for n in redis_cluster if n.command("CLUSTER", "COUNTKEYSINSLOT", slot))
    target = next(node for node in redis_cluster if node is not source)
    end = move_slot(slot, source, target, num_keys=10)
    assert await link.call_many(calls, 5.0) == keys, "ASK for those that have moved"
    assert await link.call(SET, [b"{moving}:new"], [1], 5.0) == b"OK"
    move_keys(slot, source, target)
    end()
    assert await link.call_many(calls, 5.0) == keys, "MOVED"
    assert await link.call(GET, [b"{moving}:new"], [], 5.0) == b"1"


async def test_calls_of_the_other_nodes_go_on_when_one_is_lost(redis_cluster, links):
    log = LogLines()
    link = await links(cluster_url(redis_cluster), log=log, reply_timeout_s=0.5)
    keys = [b"lost:%d" % number for number in range(60)]
    lost = redis_cluster[2]
    lost.pause()
    try:
        await link.call_many([Call(SET, [key], [1]) for key in keys], 5.0)
        assert link.state is LinkState.DOWN
        replies = await link.call_many([Call(GET, [key], []) for key in keys], 5.0)
        assert {type(reply) for reply in replies} == {bytes, LinkDown}
    finally:
        lost.resume()
    await until(lambda: link.state is LinkState.UP)
    # The other nodes may have thought it dead, and refuse a moment longer.
    await until(lambda: _all_answer(link, keys))


async def test_nodes_go_on_while_a_bug_keeps_the_map_of_slots_from_being_read(
    redis_cluster, links, monkeypatch
):
    monkeypatch.setattr("gateway.background.FIRST_PAUSE_S", 0.01)
    log, find = LogLines(), placing.find_slots
    link = await links(cluster_url(redis_cluster), log=log)
    bugs = [RuntimeError("a bug")]
    num_read = 0

    async def fail_once(*given):
        nonlocal num_read
        if bugs:
            raise bugs.pop()
        num_read += 1
        return await find(*given)

    monkeypatch.setattr(placing, "find_slots", fail_once)
    link._placing._stale.set()
    await until(lambda: not bugs, "the bug")
    assert await link.call(SET, [b"k"], [1], 5.0) == b"OK", "in between too"
    await until(lambda: num_read, "the next look at the map")
    assert [line["task"] for line in log.lines if line["event"] == "task_crashed"] == ["redis"]
    assert await link.call(GET, [b"k"], [], 5.0) == b"1"


async def _all_answer(link, keys):
    await asyncio.sleep(0.05)
    replies = await link.call_many([Call(SET, [key], [1]) for key in keys], 5.0)
    return not any(isinstance(reply, LinkError) for reply in replies)
