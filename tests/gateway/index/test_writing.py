"""What is written behind the requests: bounded, counted, and never in the way of lives."""

import asyncio
import time

import pytest
from xxhash import xxh3_64_intdigest

from gateway.background import Work
from gateway.index.predicting import Predicting
from gateway.index.segments import cut
from gateway.index.writing import MAX_SENT_BLOCKS, Writer
from gateway.observability.metrics import Metrics
from gateway.redis.errors import LinkDown
from gateway.redis.node import LinkState
from routing.block_map import BlockMap
from routing.types import ReplicaId, Tier
from tests.support.background import some_background
from tests.support.lives import Board, SomeLives
from tests.support.redis_servers import LogLines
from tests.support.replicas import until

A, B = ReplicaId("a"), ReplicaId("b")


def chain(count, name="p"):
    keys = []
    for number in range(count):
        keys.append(xxh3_64_intdigest(f"{name}{number}".encode(), keys[-1] if keys else 7))
    return keys


class Server:
    """Stands in for the link: replies as it is told to, one turn of the loop later."""

    namespace, is_cluster, state, num_met = "ns", False, LinkState.UP, 0

    def __init__(self):
        self.calls = []
        self.reply = 0
        self.meanwhile = lambda: None

    async def call_many(self, calls, _deadline_s):
        self.calls += calls
        await asyncio.sleep(0)
        self.meanwhile()
        return [self.reply] * len(calls)


class Writing:
    """A writer that follows two replicas, and what it writes to."""

    def __init__(self):
        self.server, self.metrics = Server(), Metrics()
        self.board = Board(A, B)
        self.lives = SomeLives(self.board, [A, B])
        self.blocks = BlockMap(100_000, 100_000)
        metrics = self.metrics.shared_index
        self.log = LogLines()
        self.writer = Writer(self.server, self.lives, self.blocks, metrics, 60.0, time.monotonic)

    def store(self, keys, replica=A):
        self.blocks.store(replica, keys, Tier.L0)
        self.writer.store(replica, keys, Tier.L0, [None, *keys[:-1]])

    def life(self, replica):
        return self.board.life_by_replica[replica].to_bytes(4, "little")

    def written(self, life):
        """How many blocks were sent in a life."""
        return sum((len(c.args[4]) - 12) // 8 for c in self.server.calls if c.args[0] == life)

    def counted(self, name, label):
        return getattr(self.metrics.shared_index, name).labels(label)._value.get()


@pytest.fixture
async def writing():
    made = Writing()
    crashes = some_background(made.log).crashes(Work.INDEX_WRITER)
    running = asyncio.create_task(made.writer.run(crashes))
    yield made
    running.cancel()
    await asyncio.wait({running})


async def test_a_new_life_is_begun_although_changes_keep_coming(writing):
    """A server that is far away takes no more than comes; its queue is never empty."""
    number = iter(range(1_000_000))
    writing.store(chain(10, "b"), B)
    writing.server.meanwhile = lambda: writing.store(chain(2, str(next(number))))
    writing.store(chain(10))
    await until(lambda: len(writing.server.calls) > 5, "a few calls")
    writing.board.renew(B)
    await until(lambda: writing.written(writing.life(B)), "what is held, in the new life")


async def test_stores_alone_do_not_make_the_queue_longer_than_it_may_be(writing, monkeypatch):
    monkeypatch.setattr("gateway.index.writing.MAX_QUEUED_BLOCKS", 50)
    life = writing.life(A)
    for number in range(10):
        writing.store(chain(20, str(number)))
        assert writing.writer._queue.num_blocks <= 50
    assert writing.counted("dropped", "queue") > 0
    await until(lambda: writing.life(A) != life, "the next life")
    await until(lambda: writing.written(writing.life(A)) == 200, "all of it")


async def test_a_long_queue_that_nobody_takes_leaves_turns_to_requests(writing):
    """Without a connection calls fail at once, and so without a wait."""

    turns = []

    async def down(calls, _deadline_s):
        turns.append(num_turns)
        return [LinkDown("down")] * len(calls)

    writing.server.call_many, writing.server.state = down, LinkState.DOWN
    num_turns = 0
    writing.store(chain(20 * MAX_SENT_BLOCKS))
    while writing.writer._queue.num_blocks:
        num_turns += 1
        await asyncio.sleep(0)
    assert len(turns) >= 20
    assert len(set(turns)) == len(turns)


async def test_what_becomes_of_predictions_is_counted_in_blocks(writing):
    predicting = Predicting("ns", writing.writer.add_call)
    parts = cut(chain(10))
    predicting.predict(7, parts, 2.0, 0)
    await until(lambda: writing.counted("written", "predicted") == 10)
    writing.server.reply = LinkDown("down")
    predicting.predict(7, parts, 2.0, 4)
    await until(lambda: writing.counted("dropped", "predicted") == 6)


async def test_predictions_that_have_no_room_are_counted(writing):
    writing.server.reply = 3
    keys = [key | 1 for key in chain(10)]  # one segment
    Predicting("ns", writing.writer.add_call).predict(7, cut(keys), 2.0, 0)
    await until(lambda: writing.counted("refused", "predicted") == 3)


async def test_blocks_whose_place_nobody_knows_are_counted(writing):
    keys = chain(3)
    writing.blocks.store(A, keys[1:], Tier.L1)
    writing.writer.store(A, keys[1:], Tier.L1, keys[:2])
    assert writing.counted("dropped", "unplaced") == 2
    assert len(writing.writer.chains) == 0


async def test_nothing_is_kept_of_a_replica_that_is_not_followed_any_more(writing):
    writing.store(chain(10))
    await until(lambda: writing.writer.is_idle)
    writing.lives.owned_ids = {B}
    await until(lambda: A not in writing.writer._life_by_replica)


async def test_after_a_bug_all_is_written_anew_in_the_next_life(writing):
    bugs = [RuntimeError("a bug"), RuntimeError("a bug")]

    def fail():
        if bugs:
            raise bugs.pop()

    first = writing.life(A)
    writing.server.meanwhile = fail
    writing.store(chain(10))
    await until(lambda: writing.life(A) != first, "the next life")
    await until(lambda: writing.written(writing.life(A)) == 10, "all that is held")
    [line] = writing.log.lines
    assert (line["event"], line["task"]) == ("task_crashed", "index_writer")
    await until(lambda: writing.writer.is_idle, "an end of it")
