"""What waits to be written: by segment, in order, in calls of a bounded size, and small."""

import struct
import tracemalloc
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from gateway.index.queue import MAX_CALL_BLOCKS, WriteQueue
from routing.types import Tier

HEAD = struct.Struct("<cBHQ")
LONG = MAX_CALL_BLOCKS + 500
CHANGES = st.tuples(
    st.sampled_from(["store", "remove"]),
    st.integers(1, 3),  # lives
    st.integers(1, 4),  # anchors
    st.one_of(st.integers(1, 5), st.integers(400, LONG)),
    st.sampled_from([Tier.L0, Tier.L1]),
)


def add(queue, kind, life, anchor, keys, tier):
    if kind == "store":
        queue.store(life, anchor, None, keys, tier)
    else:
        queue.remove(life, anchor, keys, tier)


def unpacked(write):
    """The changes of a write, block by block: kind, tier, the block, the one before it."""
    at, found = 0, []
    while at < len(write.packed):
        kind, tier, number, parent = HEAD.unpack_from(write.packed, at)
        at += HEAD.size
        for key in struct.unpack_from(f"<{number}Q", write.packed, at):
            found.append((kind, tier, key, parent if kind == b"S" else 0))
            parent = key
        at += 8 * number
    return found


@given(st.lists(CHANGES, max_size=12), st.integers(1, 3000), st.integers(1, 5))
def test_every_change_leaves_once_in_its_segments_order_in_calls_that_one_run_may_have(
    changes, max_blocks, max_writes
):
    queue, expected, next_key = WriteQueue(), defaultdict(list), 1
    for kind, life, anchor, number, tier in changes:
        keys = list(range(next_key, next_key + number))
        next_key += number
        add(queue, kind, life, anchor, keys, tier)
        letter = kind[0].upper().encode()
        before = [0, *keys] if kind == "store" else [0] * number
        expected[life, anchor] += [
            (letter, tier is Tier.L1, *each) for each in zip(keys, before, strict=False)
        ]
    left, found = next_key - 1, defaultdict(list)
    while queue.num_blocks:
        assert queue.num_blocks == left
        taken = queue.take(max_blocks, max_writes)
        assert taken
        for write in taken:
            assert write.num_blocks <= MAX_CALL_BLOCKS
            assert write.num_blocks == len(unpacked(write))
            found[write.life, write.anchor] += unpacked(write)
            left -= write.num_blocks
    assert found == expected
    assert queue.take(max_blocks, max_writes) == []


def test_what_came_first_leaves_first_and_no_more_than_asked_for_but_one_segment():
    queue = WriteQueue()
    for anchor in (3, 1, 2):
        queue.store(7, anchor, None, [anchor], Tier.L0)
    queue.remove(7, 3, [3], Tier.L0)
    assert [write.anchor for write in queue.take(10, 2)] == [3, 1]
    assert [write.anchor for write in queue.take(1, 10)] == [2]
    queue.store(7, 1, None, list(range(1, LONG)), Tier.L0)
    queue.store(7, 2, None, [2], Tier.L0)
    assert [write.anchor for write in queue.take(1, 10)] == [1, 1]


def test_a_life_is_dropped_alone():
    queue = WriteQueue()
    for life in (1, 2):
        queue.store(life, 5, None, [5, 6], Tier.L0)
        queue.remove(life, 9, [9], Tier.L0)
    assert queue.drop(1) == 3
    assert queue.num_blocks == 3
    assert {write.life for write in queue.take(100, 100)} == {2}


def test_a_flood_of_single_blocks_takes_little_memory():
    num_segments, num_each = 1000, 25
    tracemalloc.start()
    try:
        queue = WriteQueue()
        for number in range(num_segments * num_each):
            queue.store(1, number % num_segments, None, [number], Tier.L0)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # 20 bytes as they are sent, and what a segment takes over its blocks; 136 and more as objects.
    assert taken / queue.num_blocks < 50
