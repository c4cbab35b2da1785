"""What every kind of shared pool does, and what each does in its own way."""

import asyncio
import inspect
import json
import logging

import pytest
from pydantic import TypeAdapter

from gateway.config.schema import words
from gateway.config.shared_cache import SharedCacheConfig
from gateway.l2.base import SharedPrefix
from gateway.l2.coordinator import Coordinator
from gateway.l2.lmcache_fs import LmcacheFs
from gateway.l2.remembered import REFUTED_S
from gateway.l2.storage_events import StorageEvents
from gateway.l2.write_through import WriteThrough
from gateway.observability.logging import EventLog
from routing.hashing import HashSpec, block_keys, pack_tokens
from tests.gateway.l2.test_mount import Hang
from tests.support.replicas import until

CHUNK = 16
LOG = EventLog(logging.getLogger("test.l2"))
PROMPT = pack_tokens(range(100))  # 6 chunks and 4 tokens
OTHER = pack_tokens([*range(48), *range(1000, 1052)])  # shares 3 chunks


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


# A thread, or another task, of a busy machine may get no turn for a while.
PATIENT = {"lmcache_fs": {"stall_s": 5.0}, "lmcache_coordinator": {"timeout_s": 5.0}}


def section(**fields):
    fields = {**PATIENT.get(fields["kind"], {}), **fields}
    return TypeAdapter(SharedCacheConfig).validate_python(fields)


def of_kind(kind, folder, clock, url="http://127.0.0.1:9"):
    """Make a pool; `put(packed)` brings a prompt's chunks into it."""
    if kind == "lmcache_fs":
        config = section(
            kind=kind,
            paths=[str(folder)],
            mode="multiprocess",
            chunk_tokens=CHUNK,
        )
        cache = LmcacheFs(config, "m", lambda: "/m", LOG, clock)

        def put(packed):
            for digest in cache._hasher(cache.names).hashes(packed):
                (folder / cache.names.of(digest, 0)).write_bytes(b"kv")

        return cache, put
    if kind == "assume_write_through":
        config = section(kind=kind, chunk_tokens=CHUNK, delay_s=0.0)
        cache = WriteThrough(config, "m", clock)
        return cache, lambda packed: cache.computed(cache.chunks(packed, "", ""))
    if kind == "events":
        cache = StorageEvents(section(kind=kind), "m", clock)
        spec = HashSpec("m", CHUNK)
        return cache, lambda packed: cache.stored(block_keys(packed, spec), CHUNK)
    directory = Directory()
    config = section(kind=kind, url=url, chunk_tokens=CHUNK)
    cache = Coordinator(config, "m", lambda: "/m", directory, LOG, clock)
    return cache, directory.put


class Directory:
    """Stands in for the transport to a coordinator that knows some prompts."""

    def __init__(self):
        self.prompts = []
        self.questions = []
        self.fails = False

    def put(self, packed):
        self.prompts.append(packed)

    async def request(self, origin, request, deadlines):
        self.questions.append(json.loads(request.body))
        if self.fails:
            raise OSError("nobody there")
        if self.questions[-1]["cache_salt"]:
            return Answer(b'{"chunks": 0, "results": []}')
        ids = pack_tokens(self.questions[-1]["token_ids"])
        step = 4 * CHUNK
        ends = range(step, len(ids) + 1, step)
        num = max(
            (sum(ids[:end] == prompt[:end] for end in ends) for prompt in self.prompts), default=0
        )
        tiers = [["l1", "l2"]] * num + [["l1"]] * (len(ends) - num)
        return Answer(directory_answer(tiers))

    def close(self):
        pass


def directory_answer(tiers, world_size=1):
    """Return what a coordinator answers: for each chunk the tiers that it is in, of all ranks."""
    results = [
        {
            "key": {"chunk_hash_hex": f"{number:064x}", "model_name": "/m", "kv_rank": rank},
            "placements": [{"instance_id": "a", "tier": tier} for tier in of_chunk],
        }
        for number, of_chunk in enumerate(tiers)
        for rank in range(world_size)
    ]
    return json.dumps({"chunks": len(tiers), "results": results}).encode()


class Answer:
    status = 200
    ended = True

    def __init__(self, body):
        self._body = body

    async def read(self):
        return self._body

    def close(self):
        pass


KINDS = ("lmcache_fs", "assume_write_through", "events", "lmcache_coordinator")


def test_every_kind_is_tested():
    assert set(KINDS) == set(words(SharedCacheConfig))


@pytest.fixture(params=KINDS)
async def pool(request, tmp_path, clock):
    cache, put = of_kind(request.param, tmp_path, clock)
    if isinstance(cache, LmcacheFs):
        await cache.mount.probe()
    yield cache, put
    cache.close()


async def found(cache, packed, lora="", salt=""):
    chunks = cache.chunks(packed, lora, salt)
    told = cache.look_up(chunks)
    return told if isinstance(told, SharedPrefix) else await told


async def test_an_empty_pool_has_nothing(pool):
    cache, _ = pool
    assert (await found(cache, PROMPT)).num_tokens == 0


async def test_leading_chunks_that_are_there_are_found(pool):
    cache, put = pool
    put(PROMPT)
    assert (await found(cache, PROMPT)).num_tokens == 96
    assert (await found(cache, OTHER)).num_tokens == 48
    assert cache.known(cache.chunks(PROMPT, "", "")).num_tokens == 96


async def test_what_a_replica_did_not_find_is_not_promised_again(pool):
    cache, put = pool
    put(PROMPT)
    prefix = await found(cache, PROMPT)
    cache.refute(prefix, 32)
    assert (await found(cache, PROMPT)).num_tokens == 32


async def test_a_flush_forgets_all_that_is_known(pool):
    cache, put = pool
    put(PROMPT)
    await found(cache, PROMPT)
    assert cache.flush() >= 1
    assert cache.known(cache.chunks(PROMPT, "", "")).num_tokens == 0
    assert cache.health().known_chunks == 0


async def test_prompts_shorter_than_a_chunk_have_nothing_there(pool):
    cache, put = pool
    put(PROMPT)
    assert (await found(cache, pack_tokens(range(15)))).num_tokens == 0


async def test_another_salt_is_another_prompt(pool):
    cache, put = pool
    put(PROMPT)
    assert (await found(cache, PROMPT, salt="a")).num_tokens == 0


async def test_in_process_names_know_no_salt(tmp_path, clock):
    config = section(
        kind="lmcache_fs", paths=[str(tmp_path)], hash="sha256_cbor", chunk_tokens=CHUNK
    )
    cache = LmcacheFs(config, "m", lambda: "/m", LOG, clock)
    await cache.mount.probe()
    for digest in cache._hasher(cache.names).hashes(PROMPT):
        (tmp_path / cache.names.of(digest, 0)).write_bytes(b"kv")
    assert (await found(cache, PROMPT, salt="a")).num_tokens == 96
    assert (await found(cache, PROMPT, lora="adapter")).num_tokens == 96
    cache.close()


async def test_a_chunk_counts_only_with_all_ranks_of_it(tmp_path, clock):
    config = section(
        kind="lmcache_fs",
        paths=[str(tmp_path)],
        mode="multiprocess",
        chunk_tokens=CHUNK,
        world_size=2,
    )
    cache = LmcacheFs(config, "m", lambda: "/m", LOG, clock)
    await cache.mount.probe()
    digests = list(cache._hasher(cache.names).hashes(PROMPT))
    for number, digest in enumerate(digests):
        for rank in (0, 1):
            if (number, rank) != (5, 1):
                (tmp_path / cache.names.of(digest, rank)).write_bytes(b"kv")
    assert (await found(cache, PROMPT)).num_chunks == 5
    cache.close()


async def test_several_base_paths_are_one_pool(tmp_path, clock):
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for folder in folders:
        folder.mkdir()
    config = section(kind="lmcache_fs", paths=list(map(str, folders)), seed=0, chunk_tokens=CHUNK)
    cache = LmcacheFs(config, "m", lambda: "/m", LOG, clock)
    await cache.mount.probe()
    for digest in cache._hasher(cache.names).hashes(PROMPT):
        (folders[abs(digest) % 3] / cache.names.of(digest, 0)).write_bytes(b"kv")
    assert (await found(cache, PROMPT)).num_tokens == 96
    cache.close()


async def test_a_salt_that_no_file_can_have_is_no_fault_of_the_mount(tmp_path, clock):
    cache, _ = of_kind("lmcache_fs", tmp_path, clock)
    await cache.mount.probe()
    for salt in ("a\0b", "../a", "x" * 500, "\ud800"):
        assert cache.chunks(PROMPT, "", salt) is None
    assert (await found(cache, PROMPT, salt="\u00e4" * 128)).num_tokens == 0
    assert cache.mount.down_reason is None
    cache.close()


async def test_a_burst_of_siblings_asks_once(tmp_path, clock):
    cache, put = of_kind("lmcache_fs", tmp_path, clock)
    await cache.mount.probe()
    put(PROMPT)
    chunks = cache.chunks(PROMPT, "", "")
    first, second = cache.look_up(chunks), cache.look_up(chunks)
    assert first is second
    assert (await first).num_tokens == 96
    cache.close()


async def test_refuted_files_are_looked_for_again_after_a_while(tmp_path, clock):
    cache, put = of_kind("lmcache_fs", tmp_path, clock)
    await cache.mount.probe()
    put(PROMPT)
    cache.refute(await found(cache, PROMPT), 0)
    assert (await found(cache, PROMPT)).num_tokens == 0
    clock.now += REFUTED_S + 1.0
    assert (await found(cache, PROMPT)).num_tokens == 96
    cache.close()


async def test_it_says_why_nothing_ever_matches(tmp_path, clock):
    lines = []
    log = EventLog(logging.getLogger("test.l2.canary"))
    log.warning = lambda event, **fields: lines.append((event, fields["problem"]))
    config = section(
        kind="lmcache_fs", paths=[str(tmp_path)], mode="multiprocess", chunk_tokens=CHUNK
    )
    cache = LmcacheFs(config, "m", lambda: "/other", log, clock)
    await cache.mount.probe()
    (tmp_path / f"-SEP-m@0x01000100@0@{0:064x}.data").write_bytes(b"kv")
    for number in range(20):
        await found(cache, pack_tokens([number] * 100))
        await cache.canary.read(cache.mount, cache.names)
    [(event, problem)] = lines
    assert event == "shared_cache_never_matches"
    assert "/m" in problem
    assert "/other" in problem
    assert cache.health().problem == problem
    cache.close()


async def test_what_is_not_configured_is_read_from_a_files_name(tmp_path, clock):
    config = section(kind="lmcache_fs", paths=[str(tmp_path)], hash="sha256_cbor")
    cache = LmcacheFs(config, "m", lambda: "/m", LOG, clock)
    await cache.mount.probe()
    (tmp_path / "vllm@-m@4@2@ff@half.data").write_bytes(b"kv")
    await cache.canary.read(cache.mount, cache.names)
    names = cache.names
    assert (names.world_size, names.dtype, names.form) == (4, "half", "0.3.9")
    cache.close()


def test_blocks_that_events_told_age_out(clock):
    cache, put = of_kind("events", None, clock)
    put(PROMPT)
    clock.now += 3601.0
    assert cache.known(cache.chunks(PROMPT, "", "")).num_tokens == 0


def test_a_removal_is_for_every_replica(clock):
    cache, put = of_kind("events", None, clock)
    put(PROMPT)
    cache.removed(block_keys(PROMPT, HashSpec("m", CHUNK))[3:])
    assert cache.known(cache.chunks(PROMPT, "", "")).num_tokens == 48


def test_a_write_through_needs_its_time(clock):
    config = section(kind="assume_write_through", chunk_tokens=CHUNK, delay_s=0.5)
    cache = WriteThrough(config, "m", clock)
    chunks = cache.chunks(PROMPT, "", "")
    cache.computed(chunks)
    assert cache.known(chunks).num_tokens == 0
    clock.now += 0.6
    assert cache.known(chunks).num_tokens == 96


def test_a_pool_holds_what_its_capacity_says(clock):
    config = section(
        kind="assume_write_through", chunk_tokens=CHUNK, delay_s=0.0, capacity_tokens=64
    )
    cache = WriteThrough(config, "m", clock)
    chunks = cache.chunks(PROMPT, "", "")
    cache.computed(chunks)
    assert cache.known(chunks).num_tokens == 64, "its end went first"


async def test_requests_do_not_wait_for_a_mount_that_hangs(tmp_path, clock):
    cache, put = of_kind("lmcache_fs", tmp_path, clock)
    await cache.mount.probe()
    hang = Hang()
    pending = [cache.mount.look(hang) for _ in range(4)]
    put(PROMPT)
    told = cache.look_up(cache.chunks(PROMPT, "", ""))
    assert isinstance(told, SharedPrefix), "at once, without an answer"
    hang.end()
    await asyncio.gather(*pending)
    await until(lambda: cache.mount.num_threads_busy == 0, "free threads")
    assert (await found(cache, PROMPT)).num_tokens == 96
    cache.close()


def test_all_kinds_have_the_same_surface():
    surfaces = [
        {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
        for kind in (LmcacheFs, WriteThrough, StorageEvents, Coordinator)
    ]
    common = set.intersection(*surfaces)
    assert common >= {"chunks", "known", "look_up", "computed", "refute", "flush", "run", "close"}
