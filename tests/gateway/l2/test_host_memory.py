"""Host memory that is told what goes in and never what goes out."""

from gateway.l2.base import Chunks
from gateway.l2.host_memory import HostMemories
from routing.types import PrefixMatch
from tests.support.event_fleets import holds, tokens
from tests.support.publishers import Publisher, stored
from tests.support.replicas import until


def prompt(*keys):
    return Chunks(list(keys), b"", "")


def memories(capacity_tokens=1024):
    return HostMemories(capacity_tokens, 256, lambda: 0.0)


def test_a_copy_helps_its_own_replica_only():
    host = memories()
    host.stored("a", [1, 2])
    merged = host.credit({}, [("a", 16), ("b", 16)], prompt(1, 2, 3), 1000)
    assert merged == {"a": PrefixMatch(l1_tokens=512)}


def test_it_counts_behind_gpu_memory_and_before_the_pool():
    host = memories()
    host.stored("a", [1, 2])
    known = {"a": PrefixMatch(l0_tokens=64, l2_tokens=704, confirmed_tokens=64)}
    merged = host.credit(known, [("a", 16)], prompt(1, 2, 3), 1000)
    assert merged["a"] == PrefixMatch(64, 448, 256, 64)


def test_the_last_token_is_never_served():
    host = memories()
    host.stored("a", [1])
    merged = host.credit({}, [("a", 16)], prompt(1), 256)
    assert merged["a"].l1_tokens == 255


def test_the_least_recently_used_chunks_are_gone():
    host = memories(capacity_tokens=3 * 256)
    host.stored("a", [1, 2])
    host.stored("a", [11])
    host.used("a", prompt(1, 2))
    host.stored("a", [21])
    assert host.num_chunks("a") == 3
    assert host.credit({}, [("a", 16)], prompt(11), 1000) == {}
    assert host.credit({}, [("a", 16)], prompt(1, 2), 1000)["a"].l1_tokens == 512


def test_a_new_process_has_nothing():
    host = memories()
    host.stored("a", [1])
    host.forget("a")
    assert host.num_chunks("a") == 0
    assert host.credit({}, [("a", 16)], prompt(1), 1000) == {}


async def test_chunks_of_lmcaches_events_are_its_replicas_host_memory(fleet):
    section = {
        "kind": "assume_write_through",
        "chunk_tokens": 16,
        "l1_capacity_tokens": 320,
    }
    gateway, pairs = await fleet(Publisher(), Publisher(), shared_cache=section)
    (first, publisher), (second, _) = pairs
    ids = tokens(16)  # 4 chunks of 16, 16 blocks of 4
    lmcache = {"medium": "cpu", "lora_id": None, "group_idx": None, "kv_cache_spec_kind": None}
    await publisher.send(stored([-5, -6, -7, -8], ids, **lmcache))
    await holds(gateway, ids, first, 16, "L1")
    await holds(gateway, ids, second, 0, "L1")
    for number in range(5):  # 20 chunks more than there is room for
        start = 10_000 * (number + 1)
        names = range(start, start + 4)
        await publisher.send(stored(names, tokens(16, start), **lmcache))
    await until(lambda: _has_lost(gateway, ids, first), "the oldest prompt to go")


async def _has_lost(gateway, ids, replica):
    body = {"model": "m", "prompt": [*ids, 9999]}
    told = (await gateway.admin.post("/admin/explain?path=/v1/completions", json=body)).json()
    return (
        next(c for c in told["candidates"] if c["replica"] == replica.name)["matched_tokens"]["L1"]
        == 0
    )
