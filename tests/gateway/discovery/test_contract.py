"""What every kind of discovery does alike, against the real thing that it follows."""

import asyncio
import gc
import os
import threading

import pytest

from gateway.config.discovery import DiscoveryConfig
from gateway.config.schema import words
from gateway.replicas.discovery.kinds import BUILD_BY_KIND, STATIC
from tests.support.discoveries import (
    DnsSource,
    FileSource,
    PodSource,
    ServiceSource,
    SrvSource,
    StaticSource,
    built,
    following,
    urls,
)
from tests.support.replicas import until

SOURCES = (StaticSource, FileSource, DnsSource, SrvSource, ServiceSource, PodSource)
CHANGING = tuple(one for one in SOURCES if one.changes)

every_kind = pytest.mark.parametrize("source", SOURCES, indirect=True)
every_changing_kind = pytest.mark.parametrize("source", CHANGING, indirect=True)


@pytest.fixture
async def source(request, tmp_path):
    async with request.param(tmp_path) as source:
        yield source


def test_every_kind_of_the_table_is_in_this_suite():
    assert {one.kind for one in SOURCES} == set(BUILD_BY_KIND)


def test_every_kind_of_the_configuration_is_in_the_table():
    assert {STATIC, *words(DiscoveryConfig)} == set(BUILD_BY_KIND)


@every_kind
async def test_the_first_snapshot_names_all_there_is(source):
    await source.put(urls(3))
    async with following(built(source)) as follower:
        await follower.sees(source.expected(urls(3)))
        assert follower.problem is None
        assert len(follower.seen) == 1


@every_kind
async def test_300_replicas_are_one_snapshot(source):
    await source.put(urls(300))
    async with following(built(source)) as follower:
        await follower.sees(source.expected(urls(300)))
        assert len(follower.latest) == 300
        assert follower.problem is None


@every_changing_kind
async def test_replicas_come_and_go(source):
    await source.put(urls(2))
    async with following(built(source)) as follower:
        for now in (urls(3), urls(1), urls(2, first=7), urls(300), urls(2)):
            await source.put(now)
            await follower.sees(source.expected(now))
        assert follower.problem is None


@every_changing_kind
async def test_the_same_replicas_in_another_order_are_no_news(source):
    await source.put(urls(3))
    async with following(built(source)) as follower:
        await follower.sees(source.expected(urls(3)))
        await source.put(urls(3)[::-1])
        await source.put([*urls(3)[::-1], *urls(1, first=9)])
        await follower.sees(source.expected([*urls(3), *urls(1, first=9)]))
        assert len(set(follower.seen)) == 2


@every_changing_kind
async def test_a_source_that_breaks_keeps_the_last_good_snapshot_and_says_so(source):
    await source.put(urls(2))
    async with following(built(source)) as follower:
        await follower.sees(source.expected(urls(2)))
        await source.break_()
        await follower.says(source.says)
        assert "\n" not in follower.problem
        assert follower.latest == source.expected(urls(2))
        await source.heal()
        await follower.is_well()
        assert set(follower.seen) == {frozenset(source.expected(urls(2)))}


@every_changing_kind
async def test_a_source_that_heals_with_other_replicas_is_followed(source):
    await source.put(urls(2))
    async with following(built(source)) as follower:
        await follower.sees(source.expected(urls(2)))
        await source.break_()
        await follower.says(source.says)
        await source.heal()
        await source.put(urls(2, first=5))
        await follower.sees(source.expected(urls(2, first=5)))
        await follower.is_well()


@every_changing_kind
async def test_a_source_that_is_broken_from_the_start_yields_nothing_until_it_heals(source):
    await source.put(urls(2))
    await source.break_()
    async with following(built(source)) as follower:
        await follower.says(source.says)
        assert follower.seen == []
        await source.heal()
        await follower.sees(source.expected(urls(2)))
        await follower.is_well()
        assert len(follower.seen) == 1


def open_files():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only


def own_threads():
    """Return the threads that are not of the loop's pool, which the loop itself ends."""
    return {one for one in threading.enumerate() if not one.name.startswith("asyncio_")}


@every_kind
async def test_cancellation_leaves_nothing_open(source):
    await source.put(urls(300))
    # The first use opens what the process keeps: the loop's threads for name look-ups and files.
    async with following(built(source)) as follower:
        await follower.sees(source.expected(urls(300)))
    await settled(source)
    files, tasks, threads = open_files(), asyncio.all_tasks(), own_threads()
    for _ in range(20):
        async with following(built(source)) as follower:
            await follower.sees(source.expected(urls(300)))
    await settled(source)
    assert asyncio.all_tasks() == tasks
    assert open_files() <= files
    assert own_threads() == threads


@every_changing_kind
async def test_cancellation_in_the_middle_of_anything_is_at_once(source):
    # Turn by turn, as a cancellation that meets a result is where libraries lose it.
    await source.put(urls(40))
    for num_turns in range(40):
        async with following(built(source)):
            for _ in range(num_turns):
                await asyncio.sleep(0)
    await settled(source)
    assert source.num_open() == 0


async def settled(source):
    """Let closed transports of both sides end."""
    await until(lambda: source.num_open() == 0, "the end of all connections")
    for _ in range(5):
        await asyncio.sleep(0)
