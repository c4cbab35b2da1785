"""LMCache's coordinator as a source: what it is asked, and what its answers mean."""

import asyncio

import pytest

from gateway.l2.asking import SharedQuestion
from gateway.l2.coordinator import MAX_FAILURES, PAUSE_S, Coordinator, num_shared_chunks
from gateway.proxy.transport import HttpToolsTransport
from tests.gateway.l2.test_kinds import (
    CHUNK,
    LOG,
    PROMPT,
    Clock,
    directory_answer,
    found,
    of_kind,
    section,
)
from tests.support.replicas import ScriptedReplica


@pytest.fixture
def clock():
    return Clock()


async def test_the_coordinator_is_asked_by_what_it_needs_and_once(tmp_path, clock):
    cache, put = of_kind("lmcache_coordinator", tmp_path, clock)
    put(PROMPT)
    directory = cache._transport
    assert (await found(cache, PROMPT, salt="s")).num_tokens == 0
    question = directory.questions[-1]
    assert question["token_ids"] == list(range(100))
    assert (question["model_name"], question["world_size"], question["cache_salt"]) == (
        "/m",
        1,
        "s",
    )
    assert (await found(cache, PROMPT)).num_tokens == 96
    number = len(directory.questions)
    assert (await found(cache, PROMPT)).num_tokens == 96
    assert len(directory.questions) == number, "its answer counts for a while"


async def test_a_coordinator_that_fails_is_left_alone_and_asked_again_later(tmp_path, clock):
    cache, put = of_kind("lmcache_coordinator", tmp_path, clock)
    put(PROMPT)
    directory = cache._transport
    directory.fails = True
    for _ in range(MAX_FAILURES):
        assert (await found(cache, PROMPT)).num_tokens == 0
    assert cache.health().down_reason == "failures"
    assert (await found(cache, PROMPT)).num_tokens == 0
    assert len(directory.questions) == MAX_FAILURES
    clock.now += PAUSE_S + 1.0
    directory.fails = False
    assert (await found(cache, PROMPT)).num_tokens == 96
    assert cache.health().down_reason is None


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"results": [{}]}', b'{"results": 3}'])
def test_what_no_coordinator_says_is_refused(body):
    with pytest.raises(ValueError):
        num_shared_chunks(body)


async def test_a_real_coordinator_is_asked_by_http(clock, engines):
    async def script(conversation):
        await conversation.answer(directory_answer([["l2"]]))

    [replica] = await engines(ScriptedReplica(script))
    config = section(kind="lmcache_coordinator", url=replica.url, chunk_tokens=CHUNK)
    cache = Coordinator(config, "m", lambda: "/m", HttpToolsTransport(clock), LOG, clock)
    assert (await found(cache, PROMPT)).num_tokens == 16
    cache.close()


@pytest.mark.parametrize(
    ("tiers", "chunks"),
    [([["l2"], ["l2"], ["l1"]], 2), ([["l1"], ["l2"]], 0), ([["l1", "l2"]], 1), ([], 0)],
)
def test_a_chunk_of_two_ranks_is_one_chunk(tiers, chunks):
    assert num_shared_chunks(directory_answer(tiers, world_size=2)) == chunks


def test_a_chunk_of_which_a_rank_is_missing_is_not_there():
    body = directory_answer([["l2"], ["l2"]], world_size=2)
    lost = b'"kv_rank": 1}, "placements": [{"instance_id": "a", "tier": "l'
    first, second = body.rsplit(lost, 1)
    assert num_shared_chunks(first + lost + b"1" + second[1:]) == 1


def test_copies_in_other_object_groups_do_not_count():
    body = directory_answer([["l2"]]).replace(b'"kv_rank"', b'"object_group_id": 1, "kv_rank"')
    assert num_shared_chunks(body) == 0


def test_a_salt_that_the_coordinator_refuses_is_not_asked_for(clock):
    cache, _ = of_kind("lmcache_coordinator", None, clock)
    assert cache.chunks(PROMPT, "", "a/b") is None


class OfPrompt:
    """As much of a prepared prompt as a question needs."""

    packed_tokens = PROMPT

    class body:  # noqa: N801 - an attribute's name
        cache_salt = ""


async def test_a_request_goes_on_when_a_reload_closes_the_pool_that_it_asks(clock):
    cache, _ = of_kind("lmcache_coordinator", None, clock)
    asked = asyncio.Event()

    async def never(*_):
        asked.set()
        await asyncio.Event().wait()

    cache._transport.request = never
    question = SharedQuestion(cache, OfPrompt, "", clock)
    await asked.wait()
    cache.close()
    prefix = await question.answer()
    assert prefix.num_chunks == 0
    assert question.is_late
