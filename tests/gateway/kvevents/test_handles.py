"""The compact table of names against a dictionary."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.kvevents.handles import KeyByHandle

# Few shards and few slots, so that names meet: the last 6 bits choose a shard, those above a slot.
HANDLES = st.builds(
    lambda shard, slot, rest: shard | slot << 6 | rest << 40,
    st.sampled_from([0, 63]),
    st.integers(0, 3) | st.just(2**30 - 1),  # the last one of any table
    st.integers(0, 2**20 - 1),
)
KEYS = st.integers(0, 2**64 - 1)
ACTIONS = st.lists(st.tuples(st.booleans(), HANDLES, KEYS), max_size=120)


@given(ACTIONS)
@settings(max_examples=300)
def test_it_is_a_dictionary(actions):
    table, model = KeyByHandle(), {}
    for is_added, handle, key in actions:
        if is_added and handle not in model:
            table.add([(handle, key)])
            model[handle] = key
        elif model and not is_added:
            gone = handle if handle in model else next(iter(model))
            assert table.pop(gone) == model.pop(gone)
        assert table.get(handle) == model.get(handle)
        assert len(table) == len(model)
    assert sorted(table.values()) == sorted(model.values())
    assert {handle: table.get(handle) for handle in model} == model
    assert table.pop(2**60 - 1) is None


def test_names_that_come_and_go_for_ever_take_no_more_room():
    table = KeyByHandle()
    for number in range(20_000):
        table.add([(number * 977, number)])
        if number >= 1000:
            assert table.pop((number - 1000) * 977) == number - 1000
    num_bytes = sum(part.itemsize * len(part) for part in table._tables)
    assert num_bytes <= 64 * len(table)


def test_many_at_once():
    table = KeyByHandle()
    table.add([(number, number + 7) for number in range(200)])
    assert table.get_all([5, 500, 199]) == [12, None, 206]
