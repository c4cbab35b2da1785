"""What gateways tell each other, each voice by itself."""

import asyncio

import pytest

from gateway.api.access import RESTED_AFTER_S, Keys
from gateway.config.access import KeyConfig
from gateway.config.guards import EjectionConfig
from gateway.errors import RateLimited
from gateway.proxy.transport import Origin
from gateway.replicas.registry import Registry, Replica, ReplicaState
from gateway.replicas.state import ELSEWHERE
from gateway.shared.division import SharedDivision
from gateway.shared.ejections import Ejections
from gateway.shared.hearing import Hearing
from gateway.shared.holds import Holds
from gateway.shared.lives import LEASE_MARGIN_S, LEASE_S, SharedLives
from gateway.shared.ownership import Ownership
from gateway.shared.rates import Rates
from gateway.shared.table import Row, Table, decode_told, read_table
from gateway.shared.word import SILENCE, Word, decode_word, encode_word
from routing.types import ReplicaId
from tests.support.redis_servers import LogLines

R0, R1 = ReplicaId("r0"), ReplicaId("r1")
HOLD, WEIGHT = "r:r0", "w:r0"


class Clock:
    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


def said(**words):
    return {gateway: (100.0, word) for gateway, word in words.items()}


@pytest.fixture
def now():
    return Clock()


@pytest.fixture
def registry(now):
    names = (R0, R1)
    origin = Origin.of("http://h:1", None)
    replicas = [Replica(name, "m", f"http://{name}", origin) for name in names]
    registry = Registry(replicas, EjectionConfig(), now, lambda _: None)
    for replica in replicas:
        registry.probed_well(replica)
    return registry


# The words themselves


def test_a_word_is_read_as_it_was_told():
    word = Word(loads={"r0": (3, 0.5, 100)}, ejected={"r1": (7, 900, "reset")}, wants=("r2",))
    assert decode_word(encode_word(word)) == word


@pytest.mark.parametrize("text", [b"", b"\xc1", b"\x91\x01", b"x" * 2_000_000])
def test_what_cannot_be_read_is_silence(text):
    assert decode_word(text) == SILENCE


def test_a_word_of_a_version_that_tells_more_or_less_is_read_as_far_as_it_goes():
    assert decode_word(b"\x91\x81\xa2r0\x93\x01\x00\x00").loads == {"r0": (1, 0, 0)}
    assert decode_word(b"\x97\x80\x80\x80\x90\x80\x80\xc0") == SILENCE


def test_a_gateway_whose_word_cannot_be_read_is_told_once():
    log = LogLines()
    hearing, good = Hearing(log), encode_word(Word(wants=("r2",)))
    for text in (b"\xc1", b"", b"\xc1", good, b"\xc1"):
        words = hearing.read([b"b", 50, text, b"c", 0, encode_word(Word())], 10.0)
        assert words == {"b": (9.95, decode_word(text)), "c": (10.0, Word())}
    told = [(line["event"], line["gateway"]) for line in log.lines]
    assert told == [("gateway_unreadable", "b")] * 2, "and again when it could be read meanwhile"


@pytest.mark.parametrize("text", ["", "-", "1 0", "x y z"])
def test_what_an_owner_wrote_in_another_form_says_nothing(text):
    assert not decode_told(text).follows_events


def test_rows_that_cannot_be_read_are_left_out():
    flat = [b"v", b"9", b"life", b"7", b"r:r0", b"5 a 1 0 16", b"r:r1", b"?", b"x", b"y"]
    flat += [b"r:r2", b"4294967296 a -", b"r:r3", b"8 "]
    table = read_table(b"9", flat)
    assert table.high_water == 7
    assert table.row_by_replica == {R0: Row(5, "a", decode_told("1 0 16"))}


# Ejections


def test_one_gateways_word_counts_until_a_probe_of_ours_goes_well(registry, now):
    ejections = Ejections(registry, now)
    word = said(b=Word(ejected={R0: (1, 5000, "reset")}))
    ejections.hear(word)
    assert registry[R0].state_reason == ELSEWHERE
    assert [r.replica_id for r in registry.eligible("m")] == [R1]
    registry.probed_well(registry[R0])
    ejections.hear(word)
    assert registry[R0].state is ReplicaState.READY, "that ejection was heard before"
    ejections.hear(said(b=Word(ejected={R0: (2, 5000, "reset")})))
    assert registry[R0].state is ReplicaState.EJECTED, "this one is another"


def test_the_word_of_most_counts_until_it_ends(registry, now):
    ejections = Ejections(registry, now)
    word = Word(ejected={R0: (1, 3000, "reset")})
    ejections.hear(said(b=word, c=word, d=SILENCE))
    registry.probed_well(registry[R0])
    assert registry[R0].state is ReplicaState.EJECTED
    now.time += 3.1
    registry.probed_well(registry[R0])
    assert registry[R0].state is ReplicaState.READY


def test_a_gateway_that_is_cut_off_never_takes_the_whole_pool_out(registry, now):
    word = Word(ejected={R0: (1, 5000, "reset"), R1: (1, 5000, "reset")})
    Ejections(registry, now).hear(said(b=word, c=word))
    assert len(registry.eligible("m")) == 1


def test_only_our_own_evidence_is_told(registry, now):
    ejections = Ejections(registry, now)
    ejections.hear(said(b=Word(ejected={R0: (1, 5000, "reset")})))
    registry.failed(registry[R1], "reset", certain=True)
    assert ejections.tell().keys() == {R1}
    number, left_ms, reason = ejections.tell()[R1]
    assert (left_ms, reason) == (int(registry.ejection.base_s * 1000), "reset")
    assert number == 100_000


# Holds


def put(rows, orders, server_ms):
    """Carry orders out as the script does."""
    for order in orders:
        after, _, text = order.text.partition(" ")
        at = max(server_ms - order.number, int(after) + 1)
        field = {"hold": "r:", "weight": "w:"}[order.verb] + order.replica
        if field not in rows or rows[field][0] < at:
            rows[field] = (at, text.encode())


def test_a_hold_given_here_is_brought_once_and_taken_there(registry, now):
    registry.gateway = "a"
    holds, rows = Holds(registry, now), {}
    registry.hold(R0, ReplicaState.CORDONED, "ticket 12")
    now.time += 2.0
    orders = holds.orders()
    assert [(o.verb, o.replica, o.number) for o in orders] == [("hold", R0, 2000)]
    put(rows, orders, 50_000)
    holds.brought(orders)
    assert holds.orders() == []
    other = Registry((), EjectionConfig(), now, lambda _: None)
    Holds(other, now).hear(rows, 50_000, now.time)
    hold = other.instructions.of(R0).hold
    assert (hold.state, hold.note, hold.by) == (ReplicaState.CORDONED, "ticket 12", "a")
    assert hold.since == 100.0


def test_a_hold_heard_is_in_force_and_not_said_again(registry, now):
    holds, rows = Holds(registry, now), {HOLD: (49_000, b'["draining","","b",0]')}
    holds.hear(rows, 50_000, now.time)
    assert registry[R0].state is ReplicaState.DRAINING
    assert holds.orders() == []
    words = {HOLD: (50_000, b'["","","",0]'), WEIGHT: (50_000, b"0.5"), "v": (50_000, b"")}
    holds.hear(words, 50_000, now.time)
    assert (registry[R0].hold, registry[R0].weight) == (None, 0.5)


def test_the_last_word_counts_whoever_brings_it_first(registry, now):
    holds = Holds(registry, now)
    registry.hold(R0, ReplicaState.CORDONED, "first")  # Redis is away: it waits
    now.time += 60.0
    rows = {HOLD: (90_000, b'["","","",0]')}  # 10 s ago, somewhere else: not held
    orders = holds.orders()
    put(rows, orders, 100_000)
    holds.brought(orders)
    holds.hear(rows, 100_000, now.time)
    assert registry[R0].hold is None


def test_what_is_said_while_a_tick_is_under_way_is_later_than_all_that_it_tells(registry, now):
    holds = Holds(registry, now)
    registry.hold(R0, ReplicaState.DRAINING, "")
    under_way, asked_at, rows = holds.orders(), now.time, {}
    put(rows, under_way, 50_000)
    now.time += 0.001
    registry.hold(R0, ReplicaState.CORDONED, "one millisecond later")
    holds.brought(under_way)
    now.time += 0.001
    holds.hear(rows, 50_000, asked_at)
    assert registry[R0].hold is not None
    now.time += 0.010
    put(rows, holds.orders(), 50_002)  # a way of 10 ms less than the one before
    assert b"cordoned" in rows[HOLD][1]


def test_a_later_word_of_ours_is_not_undone_by_an_earlier_one(registry, now):
    holds = Holds(registry, now)
    registry.hold(R0, ReplicaState.CORDONED, "now")
    holds.hear({HOLD: (90_000, b'["","","",0]')}, 100_000, now.time)
    assert registry[R0].hold is not None
    assert len(holds.orders()) == 1


def test_what_was_said_is_brought_again_when_the_table_is_lost(registry, now):
    holds = Holds(registry, now)
    registry.weigh(R1, 0.5)
    orders = holds.orders()
    holds.brought(orders)
    now.time += 5.0
    holds.hear({}, 100_000, now.time)
    assert [(o.replica, o.number) for o in holds.orders()] == [(R1, 5000)]
    assert holds.orders()[0].text == orders[0].text


@pytest.mark.parametrize("later", ["held", "not held"])
def test_a_server_that_comes_back_with_an_earlier_word_is_told_the_later_one(registry, now, later):
    holds = Holds(registry, now)
    cordoned, free = b'["cordoned","","b",0]', b'["","","",0]'
    words = (free, cordoned) if later == "held" else (cordoned, free)
    for ms, text in zip((90_000, 95_000), words, strict=True):
        holds.hear({HOLD: (ms, text)}, 100_000, now.time)
    rows = {HOLD: (90_000, words[0])}
    holds.hear(rows, 101_000, now.time)
    assert (registry[R0].hold is not None) == (later == "held")
    put(rows, holds.orders(), 101_000)
    assert rows[HOLD][0] > 95_000
    assert (b"cordoned" in rows[HOLD][1]) == (later == "held")


def test_a_word_that_another_one_brought_again_a_moment_earlier_is_not_brought_twice(registry, now):
    holds = Holds(registry, now)
    text = b'["cordoned","","b",0]'
    holds.hear({HOLD: (90_000, text)}, 100_000, now.time)
    holds.hear({HOLD: (89_998, text)}, 100_000, now.time)
    assert holds.orders() == []


def test_a_word_of_a_release_that_says_more_is_read_as_far_as_it_goes(registry, now):
    text = b'["cordoned","ticket 12","b",0,"more",{"and":"more"}]'
    Holds(registry, now).hear({HOLD: (90_000, text)}, 100_000, now.time)
    assert registry[R0].state is ReplicaState.CORDONED


def test_what_was_said_again_meanwhile_is_brought_too(registry, now):
    holds = Holds(registry, now)
    registry.hold(R0, ReplicaState.CORDONED, "one")
    under_way = holds.orders()
    now.time += 0.05
    registry.hold(R0, ReplicaState.DRAINING, "two")
    holds.brought(under_way)
    assert len(holds.orders()) == 1


@pytest.mark.parametrize("text", [b"", b"{}", b'["flying","","",0]'])
def test_an_instruction_that_cannot_be_read_changes_nothing(registry, now, text):
    holds = Holds(registry, now)
    registry.hold(R0, ReplicaState.CORDONED, "")
    holds.brought(holds.orders())
    registry.weigh(R0, 0.5)
    holds.brought(holds.orders())
    holds.hear({HOLD: (100_000, text), WEIGHT: (100_000, text)}, 100_000, now.time)
    assert (registry[R0].state, registry[R0].weight) == (ReplicaState.CORDONED, 0.5)


def test_a_word_about_one_leaves_what_was_said_of_the_other(registry, now):
    holds = Holds(registry, now)
    registry.weigh(R0, 0.5)
    orders, rows = holds.orders(), {HOLD: (90_000, b'["cordoned","","b",0]')}
    put(rows, orders, 100_000)
    holds.brought(orders)
    holds.hear(rows, 100_000, now.time)
    assert (registry[R0].state, registry[R0].weight) == (ReplicaState.CORDONED, 0.5)


def test_a_word_that_is_no_news_here_is_brought_as_it_may_be_elsewhere(registry, now):
    holds, rows = Holds(registry, now), {HOLD: (90_000, b'["cordoned","why","b",0]')}
    holds.hear(rows, 90_000, now.time)
    now.time += 10.0
    rows[HOLD] = (99_999, b'["","","",0]')  # said elsewhere, and not heard here yet
    assert not registry.hold(R0, ReplicaState.CORDONED, "")
    put(rows, holds.orders(), 100_000)
    assert rows[HOLD] == (100_000, b'["cordoned","why","b",10000]')


async def test_a_word_is_settled_when_it_was_brought_or_cannot_be(registry, now):
    holds = Holds(registry, now)
    await holds.settle()
    registry.weigh(R0, 0.5)
    under_way = holds.orders()
    registry.weigh(R0, 2.0)
    waiting = asyncio.create_task(holds.settle())
    await asyncio.sleep(0)
    holds.brought(under_way)
    await asyncio.sleep(0)
    assert not waiting.done(), "what was brought was said before"
    holds.brought(holds.orders())
    await waiting
    registry.weigh(R0, 0.5)
    waiting = asyncio.create_task(holds.settle())
    await asyncio.sleep(0)
    holds.give_up()
    await waiting


# Rates


def keys(now, per_minute=60):
    keys = Keys(required=True, now=now)
    keys.replace([KeyConfig(name="k", key="secret", requests_per_minute=per_minute)])
    return keys


def let_in(keys, tries=1):
    header = [(b"authorization", b"Bearer secret")]
    number = 0
    for _ in range(tries):
        try:
            keys.caller(header)
            number += 1
        except RateLimited:
            break
    return number


def test_what_others_let_in_counts_and_is_told_by_a_tag_that_is_not_the_key(now):
    ours, theirs = keys(now), keys(now)
    here, there = Rates(ours, now), Rates(theirs, now)
    now.time += 60.0  # a full bucket of 10 is no fuller now
    here.hear(said(b=Word(taken=there.tell())))
    assert let_in(theirs, 6) == 6
    ((tag, number),) = there.tell().items()
    assert (len(tag), number) == (8, 6)
    here.hear(said(b=Word(taken=there.tell())))
    assert let_in(ours, 9) == 4
    now.time += 2.0
    assert let_in(ours, 9) == 2


def test_over_a_minute_two_gateways_let_in_what_one_would(now):
    both = [keys(now), keys(now)]
    rates = [Rates(one, now) for one in both]
    total = 0
    for _ in range(600):  # a minute of ticks, both always busy
        total += sum(let_in(one, 100) for one in both)
        words = [Word(taken=rate.tell()) for rate in rates]
        rates[0].hear(said(b=words[1]))
        rates[1].hear(said(a=words[0]))
        now.time += 0.1
    # 60, a burst of 10, and the same burst let in by each before they heard of each other.
    assert 60 <= total <= 60 + 2 * 10 + 2


def test_a_key_that_rests_is_not_told_of_and_counts_again_when_it_is_used(now):
    ours, theirs = keys(now), keys(now)
    here, there = Rates(ours, now), Rates(theirs, now)
    here.hear(said(b=Word(taken=there.tell())))
    assert let_in(theirs, 6) == 6
    for _ in range(int(RESTED_AFTER_S)):
        assert len(there.tell()) == 1
        here.hear(said(b=Word(taken=there.tell())))
        now.time += 1.0
    assert there.tell() == {}
    here.hear(said(b=Word(taken=there.tell())))
    now.time += 60.0
    here.hear(said(b=Word(taken=there.tell())))
    assert let_in(theirs, 6) == 6
    here.hear(said(b=Word(taken=there.tell())))
    assert let_in(ours, 9) == 4


def test_a_gateway_that_is_heard_first_is_not_counted_for_its_past(now):
    ours = keys(now)
    Rates(ours, now).hear(said(b=Word(taken={b"12345678": 1000})))
    assert let_in(ours) == 1


def test_what_was_let_in_while_nobody_could_be_heard_is_not_paid_for(now):
    ours = keys(now)
    rates = Rates(ours, now)
    rates.hear(said(b=Word(taken={})))
    now.time += 3600.0
    rates.hear(said(b=Word(taken={next(iter(told(ours))): 3600})))
    assert let_in(ours) == 1


def test_a_key_waits_for_a_minute_at_most(now):
    ours = keys(now)
    (tag,) = told(ours)
    ours.taken_elsewhere(tag, 10_000)
    now.time += 61.5
    assert let_in(ours, 9) == 1


def told(keys):
    assert let_in(keys) == 1
    return keys.taken()


# Lives


@pytest.fixture
def shared(now):
    ownership = Ownership("a")
    return ownership, SharedLives(ownership, now)


def hear(shared, rows, others=(), asked_at=100.0, version=b"1", high_water=50):
    ownership, lives = shared
    rows = {r: Row(life, owner) for r, (life, owner) in rows.items()}
    table = Table(version, high_water, rows)
    ownership.hear(table, others, [R0, R1], asked_at)
    lives.heard(asked_at)


def test_the_lives_of_the_table_count_and_only_our_own_are_written(shared):
    hear(shared, {R0: (7, "a"), R1: (8, "b")}, others="b")
    _, lives = shared
    assert (lives.replica_of(7), lives.replica_of(8), lives.replica_of(6)) == (R0, R1, None)
    assert (lives.owned(R0), lives.owned(R1)) == (7, None)
    assert (lives.is_owned(R0), lives.is_owned(R1)) == (True, False)
    assert (set(lives.live()), lives.high_water) == ({7, 8}, 50)


def test_after_a_pause_nothing_is_written_until_the_next_tick(shared, now):
    hear(shared, {R0: (7, "a")})
    _, lives = shared
    now.time = 100.0 + LEASE_S - LEASE_MARGIN_S
    assert lives.owned(R0) is None
    assert lives.is_owned(R0), "what it knows is still what it knows"
    hear(shared, {R0: (7, "a")}, asked_at=now.time)
    assert lives.owned(R0) == 7


def test_a_life_that_ends_counts_no_longer_and_the_next_one_is_written(shared):
    hear(shared, {R0: (7, "a")})
    _, lives = shared
    woken, before = [], lives.version
    lives.wake = lambda: woken.append(1)
    lives.renew(R0)
    assert (lives.owned(R0), lives.life_of(R0), lives.replica_of(7)) == (None, None, None)
    assert (len(woken), lives.version) == (1, before + 1)
    hear(shared, {R0: (51, "a")}, version=b"2", high_water=51)
    assert (lives.owned(R0), lives.life_of(R0), lives.replica_of(7)) == (51, 51, None)
    assert lives.version == before + 2


@pytest.mark.parametrize(
    ("step_s", "ends"), [(3600.0, True), (-11.0, True), (11.0, True), (9.0, False), (-9.0, False)]
)
def test_where_the_servers_clock_jumps_our_lives_are_begun_anew(shared, step_s, ends):
    """What Redis kept may have come to its end, or predictions that were over count again."""
    hear(shared, {R0: (7, "a"), R1: (8, "b")}, others="b")
    ownership, lives = shared
    lives.hear_clock(1000.0)
    lives.hear_clock(1000.2)
    assert not ownership.is_ending(R0)
    lives.hear_clock(1000.2 + step_s)
    assert (ownership.is_ending(R0), ownership.is_ending(R1)) == (ends, False)


def test_a_replica_of_another_gateway_gets_no_new_life_from_us(shared):
    hear(shared, {R0: (7, "b")}, others="b")
    shared[1].renew(R0)
    assert shared[1].life_of(R0) == 7


# Doubts


def owners(*names):
    table = Table(b"1", 50, {R0: Row(7, "a")})
    for name in names:
        ownership = Ownership(name)
        ownership.hear(table, set(names) - {name}, [R0], 0.0)
        yield ownership, SharedDivision(ownership), table


def test_a_doubt_is_told_until_the_life_ends_and_heard_once_by_the_owner():
    (_, at_a, _), (of_b, at_b, _) = owners("a", "b")
    at_b.doubt(R0, 1234.5)
    told = said(b=Word(doubts=at_b.tell()))
    assert list(at_a.hear(told)) == [(R0, 1234.5)]
    assert list(at_a.hear(told)) == []
    of_b.hear(Table(b"2", 51, {R0: Row(8, "a")}), {"a"}, [R0], 1.0)
    assert at_b.tell() == {}


def test_a_doubt_in_a_life_that_has_ended_is_not_heard():
    ((_, at_a, _),) = owners("a")
    assert list(at_a.hear(said(b=Word(doubts={R0: (6, 0.0)})))) == []


def test_an_owner_does_not_tell_itself():
    ((_, at_a, _),) = owners("a")
    at_a.doubt(R0, None)
    assert at_a.tell() == {}


def test_distrust_has_no_process():
    (_, at_a, _), (_, at_b, _) = owners("a", "b")
    at_b.doubt(R0, None)
    assert list(at_a.hear(said(b=Word(doubts=at_b.tell())))) == [(R0, None)]
