"""Long prompts in steps: the same answers as in one, and others run in between."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gateway.index.steps import Steps
from routing.block_map import BlockMap
from routing.types import PrefixMatch, ReplicaId, Tier

A, B = ReplicaId("a"), ReplicaId("b")
STEP = 3
PROMPT = list(range(1, 12))
FOREVER = 1e9

runs = st.integers(0, len(PROMPT))
tiers = st.sampled_from(Tier)
stored = st.lists(st.tuples(st.sampled_from([A, B]), tiers, runs, runs), max_size=6)


def in_steps(blocks):
    return Steps(blocks, STEP)


async def drained(steps):
    for _ in range(steps.num_waiting):
        await asyncio.sleep(0)
    assert not steps.num_waiting


@given(stored, runs)
def test_a_look_up_in_steps_finds_what_one_in_one_step_does(spans, num_predicted):
    blocks = BlockMap(1000, 1000)
    for replica, tier, one, other in spans:
        blocks.store(replica, PROMPT[min(one, other) : max(one, other)], tier)
    blocks.predict(A, PROMPT[:num_predicted], FOREVER)
    found = asyncio.run(in_steps(blocks).lookup({10: PROMPT}, 0.0))
    assert found == blocks.longest_prefix(PROMPT, 10, 0.0)


@given(st.lists(st.tuples(st.integers(0, 3), runs), max_size=5), st.integers(1, 20))
def test_predictions_in_steps_leave_a_full_cache_in_the_same_order(prompts, cache_blocks):
    whole, stepped = BlockMap(1000, 1000), BlockMap(1000, 1000)

    async def in_order():
        steps = in_steps(stepped)
        for number, length in prompts:
            keys = [100 * number + key for key in PROMPT[:length]]
            before = whole.predict(A, keys, FOREVER, cache_blocks)
            assert steps.predict(A, keys, FOREVER, cache_blocks) == before
            await drained(steps)

    asyncio.run(in_order())
    for number in range(4):
        keys = [100 * number + key for key in PROMPT]
        assert stepped.longest_prefix(keys, 1, 0.0) == whole.longest_prefix(keys, 1, 0.0)


async def test_the_beginning_counts_at_once_and_the_rest_a_few_turns_later():
    blocks = BlockMap(1000, 1000)
    steps = in_steps(blocks)
    steps.predict(A, PROMPT, FOREVER, None)
    assert blocks.longest_prefix(PROMPT, 1, 0.0) == {A: PrefixMatch(STEP)}
    await drained(steps)
    assert blocks.longest_prefix(PROMPT, 1, 0.0) == {A: PrefixMatch(len(PROMPT))}


async def test_what_is_taken_back_before_it_was_all_said_is_taken_back_whole():
    blocks = BlockMap(1000, 1000)
    steps = in_steps(blocks)
    blocks.predict(A, PROMPT[:2], FOREVER)
    num_known = steps.predict(A, PROMPT, FOREVER + 1, None)
    steps.withdraw(A, PROMPT[num_known:], FOREVER + 1)
    await drained(steps)
    assert blocks.longest_prefix(PROMPT, 1, 0.0) == {A: PrefixMatch(2)}


async def test_a_cleared_replica_is_told_nothing_of_before():
    blocks = BlockMap(1000, 1000)
    steps = in_steps(blocks)
    for replica in (A, B):
        steps.predict(replica, PROMPT, FOREVER, None)
    steps.forget(A)
    blocks.clear(A, ())
    await drained(steps)
    assert blocks.longest_prefix(PROMPT, 1, 0.0) == {B: PrefixMatch(len(PROMPT))}


async def test_others_have_turns_while_a_long_prompt_is_looked_up():
    blocks = BlockMap(1000, 1000)
    blocks.store(A, PROMPT, Tier.L0)
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await in_steps(blocks).lookup({1: PROMPT}, 0.0)
    beside.cancel()
    assert turns >= len(PROMPT) // STEP


async def test_more_than_may_wait_is_predicted_by_its_beginning(monkeypatch):
    monkeypatch.setattr("gateway.index.steps.MAX_WAITING", 4)
    blocks = BlockMap(1000, 1000)
    steps = in_steps(blocks)
    steps.predict(A, PROMPT, FOREVER, None)
    steps.predict(B, PROMPT, FOREVER, None)
    assert steps.num_waiting == 4
    await drained(steps)
    assert blocks.longest_prefix(PROMPT, 1, 0.0) == {
        A: PrefixMatch(len(PROMPT)),
        B: PrefixMatch(STEP),
    }
