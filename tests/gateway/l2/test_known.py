"""What is remembered of look-ups, and how few questions a look-up asks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.l2.gallop import longest_run
from gateway.l2.known import KnownChunks
from gateway.l2.recency import RecencySet


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_galloping_finds_the_end_of_a_run(there, start, length):
    end = start + length
    there = min(max(there, start), end)
    asked = []

    def is_there(number):
        asked.append(number)
        return number < there

    assert longest_run(is_there, start, end) == there
    assert len(asked) == len(set(asked))
    assert len(asked) <= 2 * (there - start).bit_length() + 1
    assert all(start <= number < end for number in asked)


@pytest.mark.parametrize(("there", "most"), [(0, 1), (1, 3), (128, 15)])
def test_questions_of_a_prompt_of_128_chunks(there, most):
    asked = []
    longest_run(lambda n: asked.append(n) or n < there, 0, 128)
    assert len(asked) <= most


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def known(clock, max_chunks=100):
    return KnownChunks(max_chunks, present_s=60.0, absent_s=1.0, now=clock)


def test_what_is_known_bounds_the_next_look_up():
    chunks = known(Clock())
    chunks.note(3, is_there=True, digest=33)
    chunks.note(5, is_there=False)
    assert chunks.span([1, 2, 3, 4, 5, 6]) == (3, 4, 33)
    assert chunks.span([1, 2]) == (0, 2, None)


def test_what_is_behind_a_chunk_that_is_missing_counts_for_nothing():
    chunks = known(Clock())
    for key in (1, 2, 3):
        chunks.note(key, is_there=True, digest=key)
    chunks.refute([2], 30.0)
    assert chunks.span([1, 2, 3]) == (1, 1, 1)


def test_presence_lasts_long_and_absence_short():
    clock = Clock()
    chunks = known(clock)
    chunks.note(1, is_there=True)
    chunks.note(2, is_there=False)
    clock.now += 2.0
    assert chunks.span([1, 2]) == (1, 2, None), "the second may be there by now"
    clock.now += 60.0
    assert chunks.span([1, 2]) == (0, 2, None)


def test_what_a_replica_computed_may_be_there_now_and_what_it_did_not_find_is_not():
    clock = Clock()
    chunks = known(clock)
    chunks.note(1, is_there=False)
    chunks.refute([2], 30.0)
    chunks.written([1, 2])
    assert chunks.span([1, 2]) == (0, 1, None)
    assert chunks.span([1]) == (0, 1, None)
    clock.now += 31.0
    assert chunks.span([7, 2]) == (0, 2, None)


def test_the_least_recently_used_are_forgotten():
    chunks = known(Clock(), max_chunks=2)
    for key in (1, 2):
        chunks.note(key, is_there=True)
    chunks.span([1])
    chunks.note(3, is_there=True)
    assert [chunks.span([key])[0] for key in (1, 2, 3)] == [1, 0, 1]
    assert chunks.flush() == 2


def test_a_pool_of_known_size_loses_the_end_of_the_oldest_prompt_first():
    held = RecencySet(capacity=5, ttl_s=60.0)
    held.store([1, 2, 3], 0.0)
    held.store([11, 12, 13], 1.0)
    assert held.leading_run([1, 2, 3], 2.0) == 2
    assert held.leading_run([11, 12, 13], 2.0) == 3


def test_a_prompt_that_was_too_old_and_is_written_again_is_there_whole():
    held = RecencySet(capacity=5, ttl_s=60.0)
    held.store([1, 2, 3], 0.0)
    assert held.leading_run([1, 2, 3], 70.0) == 0
    held.store([1, 2, 3], 70.5)
    assert held.leading_run([1, 2, 3], 70.0) == 0
    assert held.leading_run([1, 2, 3], 71.0) == 3


def test_what_is_there_stays_there_while_it_is_written_again():
    held = RecencySet(capacity=5, ttl_s=60.0)
    held.store([1], 0.0)
    held.store([1, 2], 10.5)
    assert held.leading_run([1, 2], 10.0) == 1


def test_what_is_too_old_is_gone_and_what_is_not_yet_written_does_not_count():
    held = RecencySet(capacity=5, ttl_s=60.0)
    held.store([1], 10.0)
    assert held.leading_run([1], 9.0) == 0
    assert held.leading_run([1], 60.0) == 1
    assert held.leading_run([1], 71.0) == 0
    assert len(held) == 0
