"""One stream over real sockets."""

import asyncio
import contextlib
import gc
import socket
import time
from collections import deque

import msgspec
import pytest
import zmq

from gateway.kvevents.subscriber import MAX_SHORT_GAP, Context, KvEventStream, Source
from gateway.kvevents.translate import Translator
from gateway.kvevents.turns import Turns
from tests.support.publishers import CLEARED, Publisher
from tests.support.replicas import until

NO_EVENTS = msgspec.msgpack.encode([1.0, [], 0])


def stream_from(source):
    return KvEventStream(
        source=source,
        translator=Translator("m", 1000, lambda keys, tier: set()),
        on_change=lambda change: None,
        turns=Turns(time.monotonic),
        capacity=lambda: None,
        now=time.monotonic,
        on_standing=lambda: None,
    )


@pytest.fixture
async def follow():
    """Follow a publisher from its first live batch on: `await follow(Publisher())`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(publisher):
            await publisher.start()
            stack.push_async_callback(publisher.stop)
            stream = stream_from(
                Source(publisher.endpoint, publisher.replay_endpoint, publisher.topic)
            )
            context = Context()
            stack.callback(context.destroy, linger=0)
            task = asyncio.create_task(stream.run(context))
            stack.push_async_callback(asyncio.wait, [task])
            stack.callback(task.cancel)
            await until(lambda: stream.is_synced, "the first replay")

            async def heard():
                await publisher.send(CLEARED)
                return stream.counts.batches

            await until(heard, "a live batch")
            await until(lambda: stream.counts.batches == publisher.next_number, "all so far")
            return stream

        yield start


async def test_batches_that_come_one_by_one_leave_nothing_for_the_collector(follow):
    """What is only freed by it stays for long: it runs seldom, and each batch is some 10 KB."""
    publisher = Publisher()
    stream = await follow(publisher)
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            await publisher.send(CLEARED)
            await until(lambda: stream.counts.batches == publisher.next_number, "the batch")
        assert gc.collect() < 100, "objects, of 100 batches"
    finally:
        gc.enable()


def has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


async def test_a_publisher_at_an_ipv6_address_is_heard(follow, require):
    require("IPv6 on loopback", has_ipv6(), "sysctl net.ipv6.conf.lo.disable_ipv6=0")
    stream = await follow(Publisher(host="[::1]"))
    assert stream.source.endpoint.startswith("tcp://[::1]:")


async def test_a_batch_that_is_missed_and_that_no_replay_has_counts_once(follow):
    publisher = Publisher()
    stream = await follow(publisher)
    missed, batches = stream.counts.missed, stream.counts.batches
    first = publisher.keep(CLEARED)
    publisher.keep(CLEARED)
    for number in range(first + 1):
        publisher.buffer.pop(number, None)
    await publisher.send(CLEARED)
    await until(lambda: stream.counts.batches == batches + 2, "what is left")
    assert (stream.counts.missed, stream.counts.losses) == (missed + 2, 1)


class Line:
    """Stands for a socket in which batches wait."""

    def __init__(self, *numbers):
        self.numbers = deque(numbers)

    def recv_multipart(self, flags):
        if not self.numbers:
            raise zmq.Again
        return [b"", self.numbers.popleft().to_bytes(8, "big"), NO_EVENTS]


async def test_batches_that_say_nothing_new_are_steps_too():
    """After a replay thousands may wait that it brought already."""
    stream = stream_from(Source("tcp://x:1"))
    steps = stream._take_waiting(Line(*range(50)))
    assert len(list(steps)) >= 50, "without events"
    stream._sequence._last_live = -1
    assert len(list(stream._take_waiting(Line(*range(50))))) >= 50, "known already"
    assert stream.counts.batches == 50


async def test_replays_of_long_gaps_wait_for_each_other_and_those_of_short_gaps_do_not(follow):
    """A flood of several engines makes long ones of all of them, and what waits is memory."""
    publisher = Publisher()
    stream = await follow(publisher)
    await stream.turns.long_replays.acquire()  # as another replica would that replays
    asked = len(publisher.asked_from)

    for _ in range(MAX_SHORT_GAP):
        publisher.keep(CLEARED)
    await publisher.send(CLEARED)
    await until(lambda: stream.counts.batches == publisher.next_number, "the short gap filled")
    assert len(publisher.asked_from) == asked + 1

    first = publisher.next_number
    for _ in range(MAX_SHORT_GAP + 1):
        publisher.keep(CLEARED)
    await publisher.send(CLEARED)
    await until(lambda: stream.turns.long_replays._waiters, "the long replay to wait")
    assert (len(publisher.asked_from), stream.counts.batches) == (asked + 1, first)
    stream.turns.long_replays.release()
    await until(lambda: stream.counts.batches == publisher.next_number, "its turn")
    assert publisher.asked_from[asked + 1] == first
    assert stream.counts.losses == 0
    await until(lambda: not stream.turns.long_replays.locked(), "given back")


async def test_replays_of_all_that_engines_remember_wait_for_each_other_and_gaps_do_not(
    follow,
):
    """They come faster than they are worked on, and what waits is memory."""
    publisher = Publisher()
    stream = await follow(publisher)
    places = stream.turns.whole_replays
    while not places.locked():
        await places.acquire()  # as others would that replay

    publisher.keep(CLEARED)
    await publisher.send(CLEARED)  # shows the gap
    await until(lambda: stream.counts.batches == publisher.next_number, "the gap filled")

    late = stream_from(stream.source)
    late.turns = stream.turns
    num_asked = len(publisher.asked_from)
    context = Context()
    task = asyncio.create_task(late.run(context))
    await until(lambda: places._waiters, "the whole replay to wait")
    assert 0 not in publisher.asked_from[num_asked:]
    places.release()
    await until(lambda: late.is_synced, "its turn")
    assert late.counts.batches == publisher.next_number
    assert not places.locked(), "given back"
    task.cancel()
    await asyncio.wait([task])
    context.destroy(linger=0)
