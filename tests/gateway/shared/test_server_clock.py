"""Gateways at a real server whose clock jumps, or whose tables are lost: who owns what then."""

from dataclasses import replace
from hashlib import sha1

import pytest
import redis

from gateway.redis.layout import exchange_keys
from gateway.redis.scripts import load_script
from gateway.shared.ownership import LEASE_S, SETTLED_AFTER_S, Ownership
from gateway.shared.table import read_table
from routing.types import ReplicaId

_REAL = load_script("gateway.shared", "lua/exchange.lua", writes=True)
_TEXT = _REAL.text.replace(b"redis.call('TIME')", b"redis.call('MGET', 'clock:s', 'clock:us')")
SCRIPT = replace(_REAL, text=_TEXT, digest=sha1(_TEXT, usedforsecurity=False).hexdigest().encode())
GATEWAYS, LIVES, HOLDS = exchange_keys("ns")
START_S = 1_790_000_000
TICK_S = 0.1
REPLICAS = [ReplicaId(f"r{n}") for n in range(6)]


class World:
    """Gateways that tick in turn, by their own clock and the server's, both of which we move.

    Attributes:
        now: Monotonic seconds of all gateways.
        ahead_s: The server's clock, less what it should be.
    """

    def __init__(self, link, client):
        self.link, self.client = link, client
        self.now, self.ahead_s = 0.0, 0.0
        self.ownerships = {}

    async def run(self, seconds):
        for _ in range(round(seconds / TICK_S)):
            for name in list(self.ownerships):
                self.now += TICK_S / len(self.ownerships)
                await self.tick(name)

    async def tick(self, name):
        ownership = self.ownerships[name]
        seconds, part = divmod(START_S + self.now + self.ahead_s, 1)
        self.client.mset({"clock:s": int(seconds), "clock:us": int(part * 1e6)})
        orders = ownership.orders(REPLICAS, {}, self.wanted(), self.now)
        flat = [part for order in orders for part in order]
        args = [name, b"here", int(LEASE_S * 1000), b"", b"", ownership.high_water, "", *flat]
        reply = await self.link.call(SCRIPT, [GATEWAYS, LIVES, HOLDS], args, 5.0)
        _, version, lives, _, _, others = reply
        names = [one.decode() for one in others[::3]]
        ownership.hear(read_table(version, lives), names, REPLICAS, self.now)

    def wanted(self):
        """What each would tell the others in its word."""
        found = {}
        for name, ownership in self.ownerships.items():
            for replica in ownership.wants(REPLICAS, self.now):
                found.setdefault(replica, set()).add(name)
        return found

    def owners(self):
        rows = next(iter(self.ownerships.values())).table.row_by_replica
        return {replica: row.owner for replica, row in rows.items()}

    def lives(self):
        rows = next(iter(self.ownerships.values())).table.row_by_replica
        return {replica: row.life for replica, row in rows.items()}


@pytest.fixture
async def world(own_redis, links):
    """Three gateways that own two replicas each."""
    server = own_redis()
    with redis.Redis(port=server.port) as client:
        world = World(await links(server.url), client)
        for name in "abc":
            world.ownerships[name] = Ownership(name)
        await world.run(SETTLED_AFTER_S + 2.0)
        assert set(world.owners().values()) == set("abc")
        yield world


@pytest.mark.parametrize("jump_s", [-3600, -10, 10, 3600])
async def test_a_clock_that_jumps_moves_no_replica_and_ends_no_life(world, jump_s):
    owners, lives = world.owners(), world.lives()
    world.ahead_s += jump_s
    await world.run(3.0)
    assert (world.owners(), world.lives()) == (owners, lives)


@pytest.mark.parametrize("lost", [(GATEWAYS, LIVES), (GATEWAYS,), (LIVES,)])
@pytest.mark.parametrize("first", "abc")
async def test_tables_that_are_lost_give_nobody_what_another_one_follows(world, lost, first):
    """As after a wipe, or a jump ahead that is longer than they live."""
    owners = world.owners()
    world.client.delete(*lost)
    await world.tick(first)
    await world.run(3.0)
    assert world.owners() == owners


@pytest.mark.parametrize("jump_s", [-3600, -10, 0, 10, 3600])
async def test_what_a_dead_gateway_had_is_taken_over_whatever_the_clock_does(world, jump_s):
    del world.ownerships["c"]
    world.ahead_s += jump_s
    await world.run(LEASE_S + 1.5)
    assert "c" not in world.owners().values()
    assert all(ownership.live == {"a", "b"} for ownership in world.ownerships.values())


@pytest.mark.parametrize("year", [1970, 2020, 2099])
async def test_a_server_whose_clock_is_years_off_gives_lives_that_count(world, year):
    before = world.lives()
    world.ahead_s = (year - 1970) * 365.25 * 86400 - START_S + 1
    for ownership in world.ownerships.values():
        for replica in REPLICAS:
            ownership.begin_anew(replica)
    await world.run(1.0)
    after = world.lives()
    assert set(after) == set(REPLICAS)
    assert min(after.values()) > max(before.values())
