"""Two gateways and one Redis: what one is told, the other one finds."""

import asyncio
import contextlib
import time

import pytest
from redis.crc import key_slot
from xxhash import xxh3_64_intdigest

from gateway.index.redis import RedisIndex
from gateway.index.segments import tag_of
from gateway.observability.metrics import Metrics
from gateway.redis.node import LinkState
from routing.block_map import BlockMap
from routing.types import PrefixMatch, ReplicaId, Tier
from tests.support.background import some_background
from tests.support.lives import Board, SomeLives
from tests.support.redis_servers import cluster_url, move_keys, move_slot
from tests.support.replicas import until

A, B = ReplicaId("a"), ReplicaId("b")


def chain(count, name="p", root=()):
    """Block keys as those of a prompt: each says all about what is before it."""
    keys = list(root)
    for number in range(count):
        before = keys[-1] if keys else 7
        keys.append(xxh3_64_intdigest(f"{name}{number}".encode(), before))
    return keys


def parents(keys, root=()):
    return [root[-1] if root else None, *keys[:-1]]


class Pair:
    """Two gateways: the first follows all replicas, the second one none."""

    def __init__(self, link, other_link, *replicas):
        self.board = Board(*replicas)
        self.lives = SomeLives(self.board, replicas)
        self.other_lives = SomeLives(self.board)
        self.metrics = Metrics()
        self.links = (link, other_link)
        self.index = self.make(link, self.lives)
        self.other = self.make(other_link, self.other_lives)

    def make(self, link, lives):
        return RedisIndex(
            link=link,
            lives=lives,
            blocks=BlockMap(100_000, 100_000),
            timeout_s=lambda: 5.0,
            entry_ttl_s=60.0,
            metrics=self.metrics.shared_index,
            now=time.monotonic,
        )

    def store(self, replica, keys, tier=Tier.L0, root=()):
        self.index.store(replica, keys, tier, parents(keys, root))

    async def found(self, keys):
        """What the other gateway finds, once all is written; nothing may be remembered."""
        await until(self.is_settled, "all to be written, and both to be connected")
        self.other._reader._kept.clear()
        return await self.other.lookup({1: keys})

    def is_settled(self):
        is_written = self.index.is_written and self.other.is_written
        # After an outage one may be back before the other one.
        return is_written and all(link.state is LinkState.UP for link in self.links)


@pytest.fixture
async def pairs(links):
    made = []

    async def make(url, *replicas):
        namespace = f"t{time.monotonic_ns()}"
        pair = Pair(
            await links(url, namespace=namespace), await links(url, namespace=namespace), *replicas
        )
        made.append(pair)
        for index in (pair.index, pair.other):
            index.start(some_background())
        return pair

    yield make
    for pair in made:
        for index in (pair.index, pair.other):
            index.close()


async def test_a_gateway_without_events_finds_what_another_was_told(redis_server, pairs):
    pair = await pairs(redis_server.url, A, B)
    keys = chain(300)
    pair.store(A, keys[:200])
    pair.store(B, keys)
    assert await pair.found(keys) == {
        A: PrefixMatch(200, confirmed_tokens=200),
        B: PrefixMatch(300, confirmed_tokens=300),
    }
    assert await pair.found(keys) == await pair.index.lookup({1: keys})
    assert await pair.found(keys[:1]) == {
        A: PrefixMatch(1, confirmed_tokens=1),
        B: PrefixMatch(1, confirmed_tokens=1),
    }
    assert await pair.found(chain(10, "other")) == {}


async def test_block_sizes_are_asked_for_at_once_with_a_whole_deadline_each(redis_server, pairs):
    """A fleet in the middle of a rollout that changes the block size."""
    pair = await pairs(redis_server.url, A, B)
    small, large = chain(8, "small"), chain(4, "large")
    pair.store(A, small)
    pair.store(B, large)
    await pair.found(small)
    pair.other._reader._kept.clear()
    read, deadlines, both = pair.other._reader.read, [], asyncio.Event()

    async def waits_for_the_other(keys, deadline_s):
        deadlines.append(deadline_s)
        if len(deadlines) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 2.0)
        return await read(keys, deadline_s)

    pair.other._reader.read = waits_for_the_other
    assert await pair.other.lookup({1: small, 2: large}) == {
        A: PrefixMatch(8, confirmed_tokens=8),
        B: PrefixMatch(8, confirmed_tokens=8),
    }
    assert deadlines == [5.0, 5.0]


async def test_a_hole_ends_the_prefix(redis_server, pairs):
    pair = await pairs(redis_server.url, A)
    keys = chain(300)
    pair.store(A, keys)
    pair.index.remove(A, keys[250:251], Tier.L0)
    assert (await pair.found(keys))[A].l0_tokens == 250
    pair.store(A, keys[250:251], root=keys[:250])
    assert (await pair.found(keys))[A].l0_tokens == 300


async def test_tiers_follow_each_other(redis_server, pairs):
    pair = await pairs(redis_server.url, A, B)
    keys = chain(300)
    pair.store(A, keys[:100])
    pair.store(A, keys[:200], Tier.L1)
    pair.store(B, keys[:280], Tier.L2)
    assert await pair.found(keys) == {
        A: PrefixMatch(100, 100, 80, confirmed_tokens=100),
        B: PrefixMatch(0, 0, 280),
    }
    pair.index.remove(A, keys[:1], Tier.L2)
    assert (await pair.found(keys)) == {A: PrefixMatch(100, 100, 80, confirmed_tokens=100)}


async def test_a_cleared_replica_counts_no_longer_at_once(redis_server, pairs):
    pair = await pairs(redis_server.url, A, B)
    keys = chain(300)
    pair.store(A, keys)
    pair.store(B, keys[:10])
    assert A in await pair.found(keys)
    pair.index.clear(A, keys)
    assert (await pair.other.lookup({1: keys})).keys() == {B}
    pair.store(A, keys[:5])
    assert (await pair.found(keys))[A] == PrefixMatch(5, confirmed_tokens=5)


async def test_a_prediction_is_seen_by_the_others_and_taken_back(redis_server, pairs):
    pair = await pairs(redis_server.url, A)
    keys = chain(300)
    pair.store(A, keys[:150])
    prediction = pair.index.predict(A, keys, 5.0, None, 150)
    assert (await pair.found(keys))[A] == PrefixMatch(300, confirmed_tokens=150)
    pair.index.withdraw(prediction)
    assert (await pair.found(keys))[A] == PrefixMatch(150, confirmed_tokens=150)


async def test_what_others_predicted_stays_when_a_request_that_found_it_is_refused(
    redis_server, pairs
):
    """Of a replica without events, whose predictions are said whole."""
    pair = await pairs(redis_server.url, A)
    keys = chain(300)
    pair.index.predict(A, keys[:200], 60.0, None, 0)
    assert (await pair.found(keys))[A] == PrefixMatch(200)
    refused = pair.other.predict(A, keys, 60.0, None, 200)
    assert (await pair.found(keys))[A] == PrefixMatch(300)
    pair.other.withdraw(refused)
    assert (await pair.found(keys))[A] == PrefixMatch(200)
    await until(lambda: pair.other.is_written)
    pair.other.clear(A, ())  # what it predicted itself
    assert (await pair.found(keys))[A] == PrefixMatch(200), "at the others too"


async def test_a_prediction_of_the_others_counts_where_the_replica_is_followed(redis_server, pairs):
    pair = await pairs(redis_server.url, A, B)
    pair.lives.owned_ids = {A}
    keys = chain(100)
    pair.store(A, keys[:20])
    pair.other.predict(A, keys, 5.0, None, 20)
    await until(lambda: pair.other.is_written and pair.index.is_written)
    assert (await pair.index.lookup({1: keys}))[A] == PrefixMatch(100, confirmed_tokens=20)


async def test_predictions_expire_by_the_servers_clock(redis_server, pairs):
    pair = await pairs(redis_server.url, A)
    keys = chain(100)
    pair.index.predict(A, keys, 2.0, None, 0)  # a busy machine takes a while to look
    assert (await pair.found(keys))[A].l0_tokens == 100
    await until(lambda: _finds_nothing(pair, keys))


async def _finds_nothing(pair, keys):
    return not await pair.found(keys)


async def test_a_prediction_ends_where_its_segment_had_no_room(redis_server, pairs):
    pair = await pairs(redis_server.url, A)
    keys = [key | 1 for key in chain(3)]  # one segment
    packed = [key.to_bytes(8, "little") for key in keys]
    other = (9).to_bytes(4, "little") + b"\xff" * 4 + b"\0"
    name = pair.index._predicting._names.of_predictions(tag_of(keys[0]))
    taken = [packed[2], *(b"%08d" % number for number in range(1022))]
    redis_server.command("HSET", name, *(part for field in taken for part in (field, other)))
    pair.index.predict(A, keys, 5.0, None, 0)
    assert (await pair.found(keys))[A] == PrefixMatch(1), "the second one was refused"


async def test_where_all_replicas_are_followed_here_redis_is_not_asked(redis_server, pairs):
    pair = await pairs(redis_server.url, A)
    keys = chain(10)
    pair.store(A, keys)
    assert (await pair.index.lookup({1: keys}))[A].l0_tokens == 10
    lookups = pair.metrics.shared_index.lookups
    assert lookups.labels("local")._value.get() == 1


async def test_a_hot_beginning_is_asked_for_once_in_a_while(redis_server, pairs, monkeypatch):
    monkeypatch.setattr("gateway.index.reading.HOT_FOR_S", 60.0)
    pair = await pairs(redis_server.url, A)
    shared = chain(1000, "system")
    pair.store(A, shared)
    await pair.found(shared)
    before = await pair.other.lookup({1: chain(50, "one", shared)})
    assert before[A].l0_tokens == 1000
    redis_server.command("CONFIG", "RESETSTAT")
    hits = pair.metrics.shared_index.hot_hits._value.get()
    for number in range(20):
        found = await pair.other.lookup({1: chain(50, f"user {number}", shared)})
        assert found[A].l0_tokens == 1000
    assert pair.metrics.shared_index.hot_hits._value.get() >= hits + 20


async def test_a_prompt_that_was_only_sent_is_not_taken_for_reported(
    redis_server, pairs, monkeypatch
):
    """Also where its beginning is hot, so that what was sent is remembered and not read."""
    monkeypatch.setattr("gateway.index.reading.HOT_FOR_S", 60.0)
    pair = await pairs(redis_server.url, A, B)
    keys = chain(300)
    pair.store(A, keys)
    pair.store(B, keys[:2])
    await pair.found(keys)
    for replica in (A, B):
        pair.other.predict(replica, keys, 5.0, None, 0)
    found = await pair.other.lookup({1: keys})
    assert found[A] == PrefixMatch(300, confirmed_tokens=300)
    assert found[B] == PrefixMatch(300, confirmed_tokens=2)


async def test_without_an_answer_what_was_read_and_sent_before_counts(own_redis, pairs):
    server = own_redis()
    pair = await pairs(server.url, A, B)
    read, sent = chain(300, "read"), chain(300, "sent")
    pair.store(A, read)
    await pair.found(read)
    pair.other.predict(B, sent, 0.0, None)
    server.stop()
    found = await pair.other.lookup({1: read})
    assert 100 <= found[A].l0_tokens <= 300, "as far as the last power of two segments"
    assert 100 <= (await pair.other.lookup({1: sent}))[B].l0_tokens <= 300
    assert await pair.other.lookup({1: chain(300, "new")}) == {}


async def test_what_was_taken_back_is_not_remembered_either(own_redis, pairs):
    server = own_redis()
    pair = await pairs(server.url, A)
    await pair.found(chain(1))  # so that it asks others
    refused = chain(300, "refused")
    pair.other.withdraw(pair.other.predict(A, refused, 5.0, None))
    server.stop()
    assert await pair.other.lookup({1: refused}) == {}


async def test_a_wiped_database_is_filled_again_with_the_next_life(own_redis, pairs):
    server = own_redis()
    pair = await pairs(server.url, A, B)
    keys, branch = chain(300), chain(100, "branch", chain(40))
    pair.store(A, keys)
    pair.store(B, keys[:40])
    pair.store(B, branch[40:], root=keys[:40])
    pair.store(B, keys[:30], Tier.L1)
    before = [await pair.found(each) for each in (keys, branch)]
    server.wipe()
    assert await pair.found(keys) == {}
    pair.board.renew(A)
    pair.board.renew(B)
    assert [await pair.found(each) for each in (keys, branch)] == before


async def test_a_server_that_comes_back_with_what_it_saved_before_brings_nothing_old_back(
    own_redis, pairs
):
    """What it had acknowledged since then is lost, and no call of ours failed for it."""
    server = own_redis()
    pair = await pairs(server.url, A)
    keys = chain(300)
    pair.store(A, keys)
    await pair.found(keys)
    server.command("SAVE")
    pair.index.remove(A, keys[100:], Tier.L0)
    assert (await pair.found(keys))[A].l0_tokens == 100
    server.stop()
    server.start()
    assert server.command("DBSIZE") > 0

    async def is_right():
        try:
            return (await pair.found(keys))[A].l0_tokens == 100
        except KeyError:
            return False

    await until(is_right, "what it holds now")


async def test_a_gateway_that_may_not_write_says_all_again_when_it_may(redis_server, pairs):
    pair = await pairs(redis_server.url, A)
    keys = chain(200)
    pair.store(A, keys[:100])
    await pair.found(keys)
    pair.lives.may_write = False
    pair.index.remove(A, keys[50:100], Tier.L0)
    life = pair.board.life_by_replica[A]
    pair.lives.may_write = True
    assert (await pair.found(keys))[A].l0_tokens == 50
    assert pair.board.life_by_replica[A] > life


async def test_late_writes_of_a_gateway_that_lost_a_replica_count_for_nothing(redis_server, pairs):
    """The fencing: it was paused, and its life was ended meanwhile."""
    pair = await pairs(redis_server.url, A)
    keys = chain(100)
    pair.store(A, keys[:10])
    await pair.found(keys)
    late = pair.lives.owned(A)
    pair.board.renew(A)
    pair.lives.owned = lambda replica: late
    pair.lives.owned_ids = set()
    writer, written = pair.index._writer, pair.metrics.shared_index.written.labels("reported")
    await until(lambda: A not in writer._life_by_replica, "the end of its life here")
    before = written._value.get()
    writer._store(late, keys[:10], Tier.L0)
    await until(lambda: written._value.get() == before + 10, "the late writes")
    assert await pair.found(keys) == {}


async def test_thousands_of_branches_of_one_segment_are_found(redis_server, pairs):
    pair = await pairs(redis_server.url, A)
    root = chain(40, "root")
    last_anchor = max((n for n, k in enumerate(root) if not k % 64), default=0)
    branches = [chain(6, f"user {number}", root) for number in range(400)]
    pair.store(A, root)
    for branch in branches:
        pair.store(A, branch[40:], root=root)
    for branch in branches[::37]:
        assert (await pair.found(branch))[A].l0_tokens == 46, last_anchor
    pair.index.remove(A, branches[399][42:], Tier.L0)
    assert (await pair.found(branches[399]))[A].l0_tokens == 42
    names = pair.index._writer._names
    main = names.of_blocks(tag_of(root[last_anchor]))
    assert redis_server.command("HLEN", main) <= 512
    assert redis_server.command("OBJECT", "ENCODING", main) == b"listpack"


async def test_every_key_expires(redis_server, pairs):
    """F127."""
    pair = await pairs(redis_server.url, A)
    root = chain(40, "root")
    pair.store(A, root)
    for number in range(200):
        pair.store(A, chain(6, f"user {number}", root)[40:], root=root)
    pair.index.predict(A, chain(300), 5.0, None, 0)
    await pair.found(root)
    keys = redis_server.command("KEYS", "*")
    assert keys
    assert all(redis_server.command("PTTL", key) != -1 for key in keys)


async def test_dead_lives_leave_what_is_written_to(redis_server, pairs):
    pair = await pairs(redis_server.url, A)
    keys = chain(100)
    for _ in range(5):
        pair.store(A, keys)
        await pair.found(keys)
        pair.index.clear(A, keys)
    pair.store(A, keys)
    await pair.found(keys)
    key = pair.index._writer._names.of_blocks(tag_of(keys[0]))
    assert len(redis_server.command("HGET", key, keys[0].to_bytes(8, "little"))) == 5


async def test_without_redis_what_is_known_here_is_the_answer(own_redis, pairs):
    server = own_redis()
    pair = await pairs(server.url, A, B)
    pair.lives.owned_ids = {A}
    keys = chain(100)
    pair.store(A, keys)
    await pair.found(keys)
    server.stop()
    assert (await pair.index.lookup({1: keys}))[A].l0_tokens == 100
    pair.other.predict(B, keys, 5.0, None, 0)
    pair.other._reader._kept.clear()
    assert (await pair.other.lookup({1: keys})) == {B: PrefixMatch(100)}


async def test_what_could_not_be_written_is_said_again_in_a_new_life(own_redis, pairs):
    server = own_redis()
    pair = await pairs(server.url, A)
    keys = chain(100)
    pair.store(A, keys[:50])
    await pair.found(keys)
    server.stop()
    pair.store(A, keys[50:], root=keys[:50])
    pair.index.remove(A, keys[90:], Tier.L0)
    failed = pair.metrics.shared_index.dropped.labels("failed")
    await until(failed._value.get, "writes that fail")
    server.start()
    assert (await pair.found(keys))[A].l0_tokens == 90


async def test_more_than_the_queue_holds_is_dropped_and_said_again(
    redis_server, pairs, monkeypatch
):
    monkeypatch.setattr("gateway.index.writing.MAX_QUEUED_BLOCKS", 50)
    pair = await pairs(redis_server.url, A)
    keys = chain(300)
    pair.store(A, keys)
    pair.index.remove(A, keys[200:], Tier.L0)
    assert (await pair.found(keys))[A].l0_tokens == 200
    dropped = pair.metrics.shared_index.dropped.labels("queue")
    assert dropped._value.get() > 0


async def test_lookups_of_a_cluster_go_to_all_its_nodes(redis_cluster, pairs):
    pair = await pairs(cluster_url(redis_cluster), A, B)
    keys = chain(1000)
    pair.store(A, keys[:700])
    pair.store(B, keys)
    prediction = pair.index.predict(A, keys, 5.0, None, 700)
    assert await pair.found(keys) == {
        A: PrefixMatch(1000, confirmed_tokens=700),
        B: PrefixMatch(1000, confirmed_tokens=1000),
    }
    pair.index.withdraw(prediction)
    assert (await pair.found(keys))[A] == PrefixMatch(700, confirmed_tokens=700)
    with contextlib.suppress(KeyError):
        assert "crossslot" not in str(pair.metrics.page()).lower()


async def test_what_is_kept_for_removals_goes_with_the_blocks(redis_server, pairs):
    """F125: the places of blocks that nobody holds any more are forgotten, swept ones too."""
    pair = await pairs(redis_server.url, A, B)
    keys = chain(500)
    pair.store(A, keys)
    pair.store(B, keys[:100])
    chains = pair.index._writer.chains
    pair.index.remove(A, keys[400:], Tier.L0)
    assert len(chains) == 400
    pair.index.clear(A, keys[:400])
    while pair.index._blocks.sweep(7):
        pass
    pair.store(B, keys[:1])
    assert len(chains) == 100
    pair.index.remove(B, keys[:100], Tier.L0)
    assert (len(chains), chains.num_segments) == (0, 0)


async def test_segments_are_renewed_while_somebody_holds_them(redis_server, pairs):
    pair = await pairs(redis_server.url, A)
    keys = chain(10)
    pair.store(A, keys)
    await pair.found(keys)
    name = pair.index._writer._names.of_blocks(tag_of(keys[0]))
    redis_server.command("EXPIRE", name, 5)

    async def is_renewed():
        pair.index._writer._anchors_renewed_at -= 60.0
        await asyncio.sleep(0.03)
        return redis_server.command("TTL", name) > 5

    await until(is_renewed, "the renewal")


async def test_lookups_are_right_while_a_slot_moves(redis_cluster, pairs):
    pair = await pairs(cluster_url(redis_cluster), A, B)
    keys = chain(500)
    pair.store(A, keys)
    pair.store(B, keys[:300])
    expected = {
        A: PrefixMatch(500, confirmed_tokens=500),
        B: PrefixMatch(300, confirmed_tokens=300),
    }
    assert await pair.found(keys) == expected
    slot = key_slot(pair.index._writer._names.of_blocks(tag_of(keys[0])))
    source = next(n for n in redis_cluster if n.command("CLUSTER", "COUNTKEYSINSLOT", slot))
    target = next(node for node in redis_cluster if node is not source)
    end = move_slot(slot, source, target, num_keys=0)
    assert await pair.found(keys) == expected, "still there"
    pair.index.remove(A, keys[1:2], Tier.L0)
    expected[A] = PrefixMatch(1, confirmed_tokens=1)
    assert await pair.found(keys) == expected, "written where it still is"
    move_keys(slot, source, target)
    assert await pair.found(keys) == expected, "ASK"
    pair.store(A, keys[1:2], root=keys[:1])
    expected[A] = PrefixMatch(500, confirmed_tokens=500)
    assert await pair.found(keys) == expected, "written where it is by then"
    end()
    assert await pair.found(keys) == expected, "MOVED"
    assert pair.metrics.shared_index.dropped.labels("failed")._value.get() == 0
