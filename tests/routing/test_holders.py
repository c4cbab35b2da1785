"""Masks of holders in many small dictionaries, against one large one."""

from hypothesis import given
from hypothesis import strategies as st

from routing.holders import Holders

# Some share a part, some do not.
KEYS = st.lists(st.sampled_from([1, 2, 257, 258, 2**64 - 1]), max_size=6)
MASKS = st.sampled_from([1, 2, 2**70, 3, -1])
ACTIONS = st.lists(st.tuples(st.booleans(), KEYS, MASKS), max_size=20)


@given(ACTIONS)
def test_it_is_a_dictionary_of_masks(actions):
    holders, model = Holders(), {}
    for is_added, keys, mask in actions:
        if is_added:
            assert holders.add(keys, mask) == 0
            model |= {key: model.get(key, 0) | mask for key in keys}
        else:
            holders.discard(keys, mask)
            model |= {key: model[key] & ~mask for key in keys if key in model}
            model = {key: held for key, held in model.items() if held}
        everything = [1, 2, 257, 258, 2**64 - 1, 7]
        assert len(holders) == len(model)
        assert list(holders.along(everything)) == [model.get(key, 0) for key in everything]
        assert [holders.of(key) for key in everything] == list(holders.along(everything))
        assert holders.among(everything, 2) == {k for k, held in model.items() if held & 2}


def test_new_blocks_beyond_the_bound_are_left_out_and_known_ones_are_not():
    holders = Holders()
    assert holders.add([1, 2, 3], 1, max_blocks=2) == 1
    assert holders.add([1, 4], 2, max_blocks=2) == 1
    assert [holders.of(key) for key in (1, 2, 3, 4)] == [3, 1, 0, 0]


def test_no_part_grows_far_beyond_the_others():
    """What makes a dictionary anew is one step, as long as it is large."""
    holders = Holders()
    holders.add(range(0, 2**64, 2**64 // 50_000 | 1), 1)
    sizes = [len(part) for part in holders._parts]
    assert max(sizes) < 2 * len(holders) / len(sizes)
