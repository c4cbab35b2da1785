"""Gateways that share a Redis whose clock jumps, as after a fail-over to a host that is wrong."""

from dataclasses import replace
from hashlib import sha1

import pytest

from gateway.shared import shared
from tests.support.engines import Engine
from tests.support.event_fleets import SIZE, follows, holds, publishers, tokens
from tests.support.fixtures import engines
from tests.support.publishers import Publisher, stored
from tests.support.replicas import until
from tests.support.several import gateways_seen, owned, several, state_of

__all__ = ["engines", "publishers", "several"]

AHEAD = "warmroute:test:ahead_s"


@pytest.fixture
def movable_clock(monkeypatch):
    """The exchange takes its time from Redis' clock, plus the seconds of a key of ours."""
    real = shared.load_script
    moved = f"{{redis.call('TIME')[1] + (redis.call('GET', '{AHEAD}') or 0), '0'}}".encode()

    def load(package, path, *, writes):
        script = real(package, path, writes=writes)
        text = script.text.replace(b"redis.call('TIME')", moved)
        return replace(script, text=text, digest=sha1(text).hexdigest().encode())

    monkeypatch.setattr(shared, "load_script", load)


@pytest.mark.usefixtures("movable_clock")
@pytest.mark.parametrize("jump_s", [-3600, 1800])
async def test_what_was_lost_with_a_jump_is_known_again_and_nothing_moves(
    several, own_redis, engines, publishers, jump_s
):
    sources = await publishers(*[Publisher() for _ in range(4)])
    fleet = await engines(*(Engine(block_size=SIZE, sources={"0": p.source()}) for p in sources))
    server = own_redis()
    both = await several(server, fleet)
    for gateway in both:
        for replica in fleet:
            await until(lambda g=gateway, r=replica: follows(g, r), "step")
    prompts = [tokens(30, 1000 * number) for number in range(4)]
    for source, replica, prompt in zip(sources, fleet, prompts, strict=True):
        await source.send(stored(range(1, 31), prompt))
        for gateway in both:
            await holds(gateway, prompt, replica, 30)
    await both[0].admin.post(f"/admin/replicas/{fleet[1].name}/cordon")

    async def is_held():
        return await state_of(both[1], fleet[1]) == "cordoned"

    await until(is_held, "the hold")
    owners, replays = [await owned(g) for g in both], whole_replays(sources)
    # Ahead, keys come to their end before somebody renews them.
    segments = server.command("KEYS", "warmroute:*:b:*")
    server.command("DEL", *segments)
    server.command("SET", AHEAD, jump_s)
    for gateway in both:
        await holds(gateway, prompts[0], fleet[0], 30)
    await until(lambda: server.command("EXISTS", *segments) == len(segments), "the segments")

    async def is_quiet():
        return [len(await gateways_seen(g)) for g in both] == [2, 2]

    await until(is_quiet, "both to be seen")
    assert [await owned(g) for g in both] == owners
    assert whole_replays(sources) == replays
    assert await is_held()


def whole_replays(sources):
    """How often each was asked for all, as by an owner that is new, and not for what is missing."""
    return [source.asked_from.count(0) for source in sources]
