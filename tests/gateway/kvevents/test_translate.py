"""From engine hashes to block keys."""

from collections import Counter
from pathlib import Path

import pytest

from gateway.kvevents.decode import AllCleared, BlocksRemoved, BlocksStored, decode_batch
from gateway.kvevents.translate import Removed, Stored, Translator
from routing.hashing import HashSpec, block_keys, pack_tokens
from routing.types import Tier
from tests.support.captures import batches

DATA = Path("tests/data/vllm-0.32")


def translator(max_blocks=1000):
    return Translator("m", max_blocks)


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


def test_an_orphan_is_counted_and_never_re_rooted():
    events = translator()
    assert events.apply(stored([92], [5, 6], parent=91)) is None
    assert events.skipped == Counter(orphan=1)
    assert events.num_blocks == 0


def test_one_of_two_copies_may_go():
    events = translator()
    events.apply(stored([90], [1, 2]))
    events.apply(stored([90], [1, 2]))
    assert events.apply(BlocksRemoved((90,))) is None
    assert events.apply(BlocksRemoved((90,))) == Removed(keys([1, 2]), Tier.L0)


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
        (BlocksStored((90,), None, b"", 0), "token_count"),
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
        for event in decode_batch(payload).events:
            change = events.apply(event)
            if isinstance(event, BlocksRemoved):
                assert isinstance(change, Removed), "every removal names a known block"
                removed += len(change.keys)
        assert events.num_blocks <= 160
    assert removed > 0
    assert not events.skipped
