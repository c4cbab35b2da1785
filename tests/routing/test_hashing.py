"""Block keys: equal prefix <-> equal keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.hashing import HashSpec, block_keys, max_matched_blocks, pack_tokens

SPEC = HashSpec("m", 4)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
NAMES = st.text(max_size=6)


def keys(tokens, spec=SPEC, **kwargs):
    return block_keys(pack_tokens(tokens), spec, **kwargs)


def test_only_full_blocks_have_keys():
    assert [len(keys(list(range(n)))) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


@given(TOKENS, TOKENS)
def test_keys_are_equal_exactly_as_far_as_the_tokens_are(a, b):
    shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if shared is None:
        shared = min(len(a), len(b))
    pairs = list(zip(keys(a), keys(b), strict=False))
    assert [x == y for x, y in pairs] == [i < shared // 4 for i in range(len(pairs))]


@given(TOKENS, st.integers(0, 10))
def test_a_chain_can_be_continued_from_any_block(tokens, split):
    whole = keys(tokens)
    head, tail = tokens[: split * 4], tokens[split * 4 :]
    parent = whole[split - 1] if 0 < split <= len(whole) else None
    if parent is not None:
        assert keys(head) + keys(tail, parent=parent) == whole


@given(NAMES, NAMES, NAMES, NAMES, NAMES, NAMES)
def test_model_lora_and_salt_separate_keys_and_never_stand_for_each_other(m1, l1, s1, m2, l2, s2):
    one, two = HashSpec(m1, 4, l1, s1), HashSpec(m2, 4, l2, s2)
    same = (m1, l1, s1) == (m2, l2, s2)
    assert (keys([1, 2, 3, 4], one) == keys([1, 2, 3, 4], two)) == same


def test_block_sizes_never_share_keys():
    tokens = list(range(64))
    assert not set(keys(tokens, HashSpec("m", 4))) & set(keys(tokens, HashSpec("m", 8)))


def test_media_separate_their_block_and_all_after_it():
    tokens = list(range(12))
    plain, image = keys(tokens), keys(tokens, extras={1: b"image-a"})
    assert [a == b for a, b in zip(plain, image, strict=True)] == [True, False, False]
    assert image != keys(tokens, extras={1: b"image-b"})


def test_keys_are_64_bit_and_stable_between_processes():
    # Literal: a change of this value empties every shared index during a rolling update.
    assert keys([0, 1, 2, 3, 4, 5, 6, 7]) == [6477626321983830139, 1084168053946506089]


@pytest.mark.parametrize(
    ("tokens", "blocks", "why"),
    [
        (0, 0, "no prompt"),
        (1, 0, "the only token is computed"),
        (16, 0, "the last token is always computed, so a full block is not served"),
        (17, 1, "one token behind a block"),
        (32, 1, "exact multiples lose their last block"),
        (33, 2, "two blocks and one"),
    ],
)
def test_a_hit_never_covers_the_whole_prompt(tokens, blocks, why):
    assert max_matched_blocks(tokens, 16) == blocks, why


def test_a_block_size_below_one_is_refused():
    with pytest.raises(ValueError, match="block_size"):
        HashSpec("m", 0)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_token_ids_that_do_not_fit_are_refused(token):
    with pytest.raises(OverflowError):
        pack_tokens([token])
