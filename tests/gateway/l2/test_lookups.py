"""Looking for LMCache's files: what is there in part, what a replica refuted, and who asks."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.l2.lmcache_fs import LmcacheFs
from routing.hashing import pack_tokens
from tests.gateway.l2.test_kinds import CHUNK, LOG, OTHER, PROMPT, Clock, found, of_kind, section
from tests.gateway.l2.test_mount import Hang


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def pair(tmp_path, clock):
    """A pool of an engine of two ranks."""
    fields = {"mode": "multiprocess", "chunk_tokens": CHUNK, "world_size": 2}
    cache = LmcacheFs(
        section(kind="lmcache_fs", paths=[str(tmp_path)], **fields), "m", lambda: "/m", LOG, clock
    )
    await cache.mount.probe()
    yield cache
    cache.close()


@pytest.fixture
async def single(tmp_path, clock):
    cache, put = of_kind("lmcache_fs", tmp_path, clock)
    await cache.mount.probe()
    yield cache, put
    cache.close()


def write(cache, rank, numbers, packed, body=b"kv"):
    digests = list(cache._hasher(cache.names).hashes(packed))
    for number in numbers:
        Path(cache.mount.paths[0], cache.names.of(digests[number], rank)).write_bytes(body)


LONG = pack_tokens(range(CHUNK * 20))


async def test_a_rank_that_writes_nothing_leaves_nothing_whole_whoever_asks(pair):
    write(pair, 0, range(20), LONG)
    assert (await found(pair, LONG)).num_chunks == 0
    assert (await found(pair, LONG)).num_chunks == 0, "nor the next time, from what is remembered"
    assert (await found(pair, LONG[: 4 * CHUNK * 8])).num_chunks == 0


async def test_the_chunks_that_all_ranks_have_are_found_however_far_back(pair):
    write(pair, 0, range(20), LONG)
    write(pair, 1, range(5), LONG)
    assert (await found(pair, LONG)).num_chunks == 5
    assert (await found(pair, LONG)).num_chunks == 5
    write(pair, 1, range(5, 20), LONG)
    pair._known.flush()
    assert (await found(pair, LONG)).num_chunks == 20


async def test_an_empty_file_is_no_chunk(single):
    cache, put = single
    put(PROMPT)
    write(cache, 0, [2], PROMPT, b"")
    assert (await found(cache, PROMPT[: 4 * 3 * CHUNK])).num_chunks == 2


async def test_what_a_replica_did_not_find_is_missing_for_longer_prompts_too(single):
    cache, put = single
    put(LONG)
    assert (await found(cache, LONG)).num_chunks == 20
    short = await found(cache, LONG[: 4 * CHUNK * 10])
    cache.refute(short, 3 * CHUNK)
    assert (await found(cache, LONG)).num_chunks == 3


async def test_prompts_that_share_their_beginning_get_answers_of_their_own(single):
    cache, put = single
    put(PROMPT[: 4 * 3 * CHUNK])
    both = [cache.chunks(packed, "", "") for packed in (PROMPT, OTHER)]
    for chunks in both:
        cache._known.note(chunks.keys[3], is_there=False)
    first, second = [cache.look_up(chunks) for chunks in both]
    assert [(await first).chunks, (await second).chunks] == both


async def test_the_same_prompt_again_does_not_wait_for_a_look_up_that_hangs(single, monkeypatch):
    cache, _ = single
    hang = Hang()

    def look(*_):
        hang()
        raise OSError("the mount went away")

    monkeypatch.setattr("gateway.l2.lmcache_fs._look", look)
    chunks = cache.chunks(PROMPT, "", "")
    first = cache.look_up(chunks)
    cache.mount._down("slow")
    again = cache.look_up(chunks)
    assert again.num_chunks == 0, "at once"
    hang.end()
    await first


@pytest.mark.parametrize("form", ["0.3.10", "0.3.9", "0.3.7"])
def test_a_hash_that_an_old_version_cannot_store_under_is_refused(form):
    old = {"kind": "lmcache_fs", "paths": ["/mnt/l2"], "name_form": form, "seed": 0}
    with pytest.raises(ValidationError, match="other than builtin"):
        section(**old, hash="sha256_cbor")
    assert section(**old, hash="builtin").name_form == form


async def test_files_of_the_published_pattern_are_found(tmp_path, clock):
    """LMCache 0.3.9 with a model in a folder, as the images of August 2026 have it."""
    fields = {"kind": "lmcache_fs", "paths": [str(tmp_path)], "seed": 0, "chunk_tokens": CHUNK}
    cache = LmcacheFs(section(**fields), "m", lambda: "/opt/ml/model", LOG, clock)
    await cache.mount.probe()
    for digest in ("7733fb4ad2cf185d", "-25406c296b203494", "40ded8b70154706e"):
        write_name(tmp_path, f"vllm@-opt-ml-model@1@0@{digest}@half.data")
    await cache.canary.read(cache.mount, cache.names)
    assert (await found(cache, pack_tokens(range(100)))).num_chunks == 3
    cache.close()


def write_name(folder, name):
    (folder / name).write_bytes(b"kv")


@pytest.mark.parametrize(("names", "longest_s"), [([], 30.0), (["m@1@0@ff@half.data"], 600.0)])
async def test_an_empty_pool_is_looked_at_more_often_than_a_full_one(
    single, monkeypatch, names, longest_s
):
    cache, _ = single
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 12:
            raise OverflowError

    for name in names:
        write_name(Path(cache.mount.paths[0]), name)
    monkeypatch.setattr("gateway.l2.canary.asyncio.sleep", sleep)
    with pytest.raises(OverflowError):
        await cache.canary.watch(cache.mount, lambda: cache.names)
    assert slept[-1] == longest_s
