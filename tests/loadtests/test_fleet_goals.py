"""The goals of `make measure-fleet`, and the parts of `make measure-redis-chaos`."""

import asyncio
import contextlib
import time
from dataclasses import replace

import pytest

from loadtests.demo.figures import Figures
from loadtests.fleet import goals
from loadtests.fleet.goals import Measured
from loadtests.redis_chaos.proxy import Proxy

FIGURES = Figures(0.1, 0.2, 0.3, 0.4, 0.800, 1.50, 10.0, 0)
ALONE = Measured(FIGURES, 0.5, 1.0, {})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({}, []),
        ({"prefix_hit_ratio": 0.781, "ttft_mean_s": 0.459, "skew": 1.69}, []),
        ({"prefix_hit_ratio": 0.779}, ["prefix hit ratio"]),
        ({"ttft_mean_s": 0.461}, ["TTFT mean, s"]),
        ({"skew": 1.71}, ["skew (max / mean in flight)"]),
        ({"errors": 1}, ["errors"]),
    ],
)
def test_a_goal_is_missed_just_beyond_its_bound(change, what):
    together = replace(ALONE, figures=replace(FIGURES, **change))
    assert [line.what for line in goals.lines(ALONE, together) if not line.met] == what


def test_a_busy_machine_is_a_missed_goal_too():
    missed = goals.missed(goals.lines(replace(ALONE, cpu_share=0.9), ALONE))
    assert len(missed) == 1
    assert "this measures the machine" in missed[0]


def test_look_ups_without_an_answer_are_told_as_a_share():
    lookups = {"shared": 6, "local": 2, "timeout": 1, "slow": 1}
    assert replace(ALONE, lookups=lookups).unanswered == 0.2
    assert ALONE.unanswered == 0.0


@pytest.fixture
async def echo():
    serving = set()

    async def serve(reader, writer):
        serving.add(asyncio.current_task())
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                writer.write(data)
        await ended(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await asyncio.gather(*serving)


async def ended(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def connected(proxy):
    return await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))


async def test_the_proxy_delays_a_round_trip_and_keeps_the_order(echo):
    async with Proxy(echo, delay_s=0.05) as proxy:
        reader, writer = await connected(proxy)
        started = time.monotonic()
        for number in range(5):
            writer.write(b"%d" % number)
            await asyncio.sleep(0)
        assert await reader.readexactly(5) == b"01234"
        assert time.monotonic() - started >= 0.05
        await ended(writer)


async def test_the_proxy_resets_what_is_open(echo):
    async with Proxy(echo) as proxy:
        reader, writer = await connected(proxy)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        assert proxy.num_resets == 1
        await ended(writer)
