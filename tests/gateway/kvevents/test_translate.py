"""From engine hashes to block keys."""

from collections import Counter
from pathlib import Path

import pytest

from gateway.kvevents.decode import AllCleared, BlocksRemoved, BlocksStored, batch_events
from gateway.kvevents.orphans import MAX_ORPHAN_BLOCKS, ORPHAN_PATIENCE_S
from gateway.kvevents.translate import (
    COPY_BATCHES,
    MAX_CHANGE_BLOCKS,
    Cleared,
    Removed,
    Stored,
    Translator,
)
from routing.block_map import BlockMap
from routing.hashing import HashSpec, block_keys, pack_tokens
from routing.types import ReplicaId, Tier
from tests.support.captures import batches

DATA = Path("tests/data/vllm-0.32")
R = ReplicaId("r")


class Events:
    """A translator that feeds a block map, as in the gateway."""

    def __init__(self, max_blocks=100_000):
        self.blocks = BlockMap(100_000, 10)
        self.translator = Translator(
            "m", max_blocks, lambda keys, tier: self.blocks.held(R, keys, tier)
        )
        self.now = 0.0

    def __getattr__(self, name):
        return getattr(self.translator, name)

    def all(self, event):
        """Apply an event; its changes, with lists of keys."""
        changes = []
        for change in self.translator.apply(event, self.now):
            changes.append(Cleared(list(change.keys)) if isinstance(change, Cleared) else change)
            match changes[-1]:
                case Stored(keys, tier):
                    self.blocks.store(R, keys, tier)
                case Removed(keys, tier):
                    self.blocks.remove(R, keys, tier)
                case Cleared(keys):
                    self.blocks.clear(R, keys)
        return changes

    def apply(self, event):
        """Apply an event that makes at most one change."""
        changes = self.all(event)
        assert len(changes) <= 1
        return changes[0] if changes else None

    def matched(self, tokens):
        """How many blocks of a prompt are held."""
        found = self.blocks.longest_prefix(keys(tokens), 1, 0.0)
        return found[R].total_tokens if R in found else 0


def translator(max_blocks=1000):
    return Events(max_blocks)


def stored(hashes, tokens, parent=None, **kwargs):
    return BlocksStored(tuple(hashes), parent, pack_tokens(tokens), 2, **kwargs)


def keys(tokens, **kwargs):
    return block_keys(pack_tokens(tokens), HashSpec("m", 2, **kwargs))


def test_stored_blocks_get_the_keys_of_a_prompt_with_the_same_tokens():
    events = translator()
    first = events.apply(stored([90, 91], [1, 2, 3, 4]))
    second = events.apply(stored([92], [5, 6], parent=91))
    assert first == Stored(keys([1, 2, 3, 4]), Tier.L0)
    assert second == Stored(keys([1, 2, 3, 4, 5, 6])[2:], Tier.L0)


def test_a_removal_names_the_same_keys():
    events = translator()
    events.apply(stored([90, 91], [1, 2, 3, 4]))
    assert events.apply(BlocksRemoved((91,))) == Removed(keys([1, 2, 3, 4])[1:], Tier.L0)
    assert events.apply(BlocksRemoved((91,))) is None, "gone already"
    assert events.num_blocks == 1


def test_a_long_run_is_several_changes_of_one_chain():
    events = translator()
    num_blocks = 2 * MAX_CHANGE_BLOCKS + 1
    tokens = list(range(2 * num_blocks))
    salt = [["s"], *[None] * (num_blocks - 2), [["img", 0]]]
    changes = events.all(stored(range(1, num_blocks + 1), tokens, extra_keys=salt))
    assert [len(change.keys) for change in changes] == [MAX_CHANGE_BLOCKS, MAX_CHANGE_BLOCKS, 1]
    found = [key for change in changes for key in change.keys]
    assert found[:-1] == keys(tokens, cache_salt="s")[:-1]
    assert found[-1] != keys(tokens, cache_salt="s")[-1], "the last block has a picture"


# Orphans


def test_an_orphan_is_counted_and_never_re_rooted():
    events = translator()
    assert events.apply(stored([92], [5, 6], parent=91)) is None
    assert events.skipped == Counter(orphan=1)
    assert events.num_blocks == 0
    assert events.matched([5, 6]) == 0


def test_orphans_are_adopted_when_their_parent_comes_whatever_their_order():
    events = translator()
    events.apply(stored([93], [7, 8], parent=92))
    events.apply(stored([92], [5, 6], parent=91))
    changes = events.all(stored([90, 91], [1, 2, 3, 4]))
    assert [key for change in changes for key in change.keys] == keys(range(1, 9))
    assert (events.num_adopted, events.num_orphans, events.num_blocks) == (2, 0, 4)
    assert events.matched(range(1, 9)) == 4


def test_a_block_that_is_removed_while_it_waits_is_not_adopted():
    events = translator()
    events.apply(stored([92, 93], [5, 6, 7, 8], parent=91))
    events.apply(BlocksRemoved((93,)))
    events.all(stored([90, 91], [1, 2, 3, 4]))
    assert events.matched(range(1, 9)) == 3
    assert events.all(BlocksRemoved((93,))) == []


def test_orphans_are_forgotten_after_a_while_and_by_a_clear():
    events = translator()
    events.apply(stored([92], [5, 6], parent=91))
    events.now = ORPHAN_PATIENCE_S
    assert events.all(stored([91], [3, 4])) == [Stored(keys([3, 4]), Tier.L0)]
    events.apply(stored([95], [5, 6], parent=94))
    events.apply(AllCleared())
    assert events.all(stored([94], [3, 4])) == [Stored(keys([3, 4]), Tier.L0)]


def test_no_more_orphans_are_kept_than_the_bound_and_the_oldest_go():
    events = translator()
    for number in range(MAX_ORPHAN_BLOCKS + 1):
        events.apply(stored([10**6 + number], [5, 6], parent=number + 1))
    assert events.num_orphans == MAX_ORPHAN_BLOCKS
    assert len(events.all(stored([1], [1, 2]))) == 1, "the first one was let go"
    assert len(events.all(stored([2], [3, 4]))) == 2


# Copies and names


def test_one_of_two_copies_may_go():
    events = translator()
    events.apply(stored([90], [1, 2]))
    events.apply(stored([90], [1, 2]))
    assert events.apply(BlocksRemoved((90,))) is None
    assert events.apply(BlocksRemoved((90,))) == Removed(keys([1, 2]), Tier.L0)


def test_two_sequences_that_write_the_same_make_a_copy_at_any_time():
    events = translator()
    events.apply(stored([90], [1, 2]))
    for _ in range(2):
        events.begin_batch()
        events.apply(stored([91], [3, 4], parent=90))
    events.apply(BlocksRemoved((91,)))
    assert events.matched([1, 2, 3, 4]) == 2
    events.apply(BlocksRemoved((91,)))
    assert events.matched([1, 2, 3, 4]) == 1


def test_a_report_of_what_was_found_is_no_copy():
    events = translator()
    events.apply(stored([90, 91], [1, 2, 3, 4]))
    events.begin_batch()
    events.apply(stored([90, 91], [1, 2, 3, 4]))
    assert not events.reports_hits, "may be a copy still"
    for _ in range(COPY_BATCHES):
        events.begin_batch()
    for _ in range(3):
        events.apply(stored([90, 91], [1, 2, 3, 4]))
    assert events.reports_hits
    assert events.apply(BlocksRemoved((91,))) == Removed(keys([1, 2, 3, 4])[1:], Tier.L0)
    events.begin_batch()
    events.apply(stored([95], [7, 8]))
    events.apply(stored([95], [7, 8]))
    assert events.apply(BlocksRemoved((95,))) == Removed(keys([7, 8]), Tier.L0), "found at once"


def test_only_so_many_beginnings_of_prompts_are_remembered():
    """However many each batch has: after quiet ones, an engine may report all of its cache."""
    events = translator(max_blocks=100_000)
    number = 0
    for count in [1] * COPY_BATCHES + [1000] * 6:
        events.begin_batch()
        for _ in range(count):
            number += 1
            events.apply(stored([number], [number, number]))
    assert len(events._new_beginnings) <= 3 * 1000 + 48


def test_one_of_two_names_of_a_block_may_go():
    """The engine hashes more than we do: what follows a block, or where an adapter came from."""
    events = translator()
    events.apply(stored([90], [1, 2]))
    events.begin_batch()
    events.apply(stored([80], [1, 2]))
    assert events.apply(BlocksRemoved((90,))) is None
    assert events.matched([1, 2]) == 1
    assert events.apply(BlocksRemoved((80,))) == Removed(keys([1, 2]), Tier.L0)
    assert events.apply(BlocksRemoved((90,))) is None


def test_a_name_that_means_another_block_now_lets_go_of_the_first():
    events = translator()
    events.apply(stored([90], [1, 2]))
    assert events.all(stored([90], [3, 4])) == [
        Removed(keys([1, 2]), Tier.L0),
        Stored(keys([3, 4]), Tier.L0),
    ]
    assert (events.matched([1, 2]), events.matched([3, 4]), events.num_blocks) == (0, 1, 1)


def test_a_name_of_several_copies_that_means_another_block_now_lets_go_of_all_of_them():
    events = translator()
    events.apply(stored([80], [1, 2]))
    for _ in range(2):
        events.apply(stored([90], [3, 4], parent=80))
    events.all(stored([90], [5, 6], parent=80))
    assert events.matched([1, 2, 3, 4]) == 1
    assert events.matched([1, 2, 5, 6]) == 2
    events.apply(BlocksRemoved((90,)))
    assert (events.matched([1, 2, 5, 6]), events.num_blocks) == (1, 1)


# Groups


def test_a_removal_in_a_group_that_makes_no_prefix_changes_nothing():
    events = translator()
    full = {"group": 0, "spec_kind": "full_attention"}
    events.apply(stored([90], [1, 2], **full))
    events.apply(stored([90], [1, 2], group=1, spec_kind="sliding_window"))
    assert events.apply(BlocksRemoved((90,), "GPU", 1)) is None
    assert events.matched([1, 2]) == 1
    assert events.apply(BlocksRemoved((90,), "GPU", 0)) == Removed(keys([1, 2]), Tier.L0)


def test_the_block_size_is_that_of_the_event():
    events = translator()
    events.apply(BlocksStored((90,), None, pack_tokens(range(6)), 6))
    assert events.block_size == 6
    first = block_keys(pack_tokens(range(6)), HashSpec("m", 6))
    assert events.blocks.held(R, first, Tier.L0) == set(first)


# Tiers


@pytest.mark.parametrize(
    ("medium", "tier"), [(None, Tier.L0), ("GPU", Tier.L0), ("cpu", Tier.L1), ("STORAGE", Tier.L2)]
)
def test_the_medium_names_the_tier(medium, tier):
    assert translator().apply(stored([90], [1, 2], medium=medium)) == Stored(keys([1, 2]), tier)


def test_leaving_one_tier_leaves_the_others():
    events = translator()
    events.apply(stored([90], [1, 2], medium="GPU"))
    events.apply(stored([90], [1, 2], medium="CPU"))
    assert events.apply(BlocksRemoved((90,), "GPU")) == Removed(keys([1, 2]), Tier.L0)
    child = events.apply(stored([91], [3, 4], parent=90))
    assert child == Stored(keys([1, 2, 3, 4])[1:], Tier.L0), "the parent is still known from L1"


def test_an_offload_names_known_blocks_without_their_tokens():
    events = translator()
    events.apply(stored([90, 91], [1, 2, 3, 4]))
    offload = BlocksStored((90, 91, 77), None, b"", 0, "CPU")
    assert events.apply(offload) == Stored(keys([1, 2, 3, 4]), Tier.L1)
    assert events.skipped == Counter(unknown_hash=1)
    assert events.apply(offload) is None, "told again"
    assert events.apply(BlocksRemoved((90, 91), "GPU")) == Removed(keys([1, 2, 3, 4]), Tier.L0)
    assert events.matched([1, 2, 3, 4]) == 2
    assert events.apply(BlocksRemoved((90, 91), "CPU")) == Removed(keys([1, 2, 3, 4]), Tier.L1)
    assert events.matched([1, 2, 3, 4]) == 0


def test_salt_and_lora_separate_as_they_do_for_prompts():
    salted = translator().apply(stored([90, 91], [1, 2, 3, 4], extra_keys=[["abc"], None]))
    assert salted == Stored(keys([1, 2, 3, 4], cache_salt="abc"), Tier.L0)
    lora = translator().apply(
        stored([90, 91], [1, 2, 3, 4], lora_name="l", extra_keys=[["l", "abc"], ["l"]])
    )
    assert lora == Stored(keys([1, 2, 3, 4], lora="l", cache_salt="abc"), Tier.L0)


def test_blocks_with_media_match_no_text_prompt():
    image = translator().apply(stored([90, 91], [1, 2, 3, 4], extra_keys=[None, [["img", 0]]]))
    assert image.keys[0] == keys([1, 2])[0]
    assert image.keys[1] != keys([1, 2, 3, 4])[1]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored([90], [1, 2], spec_kind="sliding_window"), "no_prefix_group"),
        (stored([90, 91], [1, 2]), "token_count"),
        (BlocksStored((90,), None, b"", 0), "unknown_hash"),
        (BlocksStored((90,), None, pack_tokens([1, 2]), 0), "token_count"),
        (stored([90], [1, 2], group=1), "no_prefix_group"),
        (stored([90], [1, 2], medium="TAPE"), "medium"),
    ],
)
def test_what_makes_no_prefix_is_skipped_and_counted(event, reason):
    events = translator()
    assert events.apply(event) is None
    assert events.skipped == Counter({reason: len(event.hashes)})


def test_the_bound_on_blocks():
    events = translator(max_blocks=2)
    events.apply(stored([90, 91], [1, 2, 3, 4]))
    assert events.apply(stored([92], [5, 6], parent=91)) is None
    assert events.skipped == Counter(max_blocks=1)


def test_a_clear_names_what_was_held():
    events = translator()
    events.apply(stored([90, 91], [1, 2, 3, 4]))
    assert sorted(events.apply(AllCleared()).keys) == sorted(keys([1, 2, 3, 4]))
    assert events.num_blocks == 0


def test_a_real_engine_that_overflows_never_holds_more_than_its_cache():
    """Captured from a cache of 160 blocks: removals keep the count at or under it."""
    events = translator()
    removed = 0
    for _, _, payload in batches(DATA / "kv_evict_A.frames.bin"):
        for event in batch_events(payload):
            changes = events.all(event)
            if isinstance(event, BlocksRemoved):
                assert changes, "every removal names a known block"
                removed += len(changes[0].keys)
        assert events.num_blocks <= 160
    assert removed > 0
    assert not events.skipped
