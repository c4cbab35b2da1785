"""KV event batches: both encodings, every field, and what makes no sense."""

import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kvevents.decode import (
    LARGE_BYTES,
    AllCleared,
    BatchUnreadable,
    BlocksRemoved,
    BlocksStored,
    Pause,
    batch_events,
)
from routing.hashing import pack_tokens
from tests.support.captures import batches

CAPTURES = sorted(Path("tests/data/vllm-0.32").glob("*.frames.bin"))


def batch(*events):
    return msgspec.msgpack.encode([1795969023.4, list(events), 0])


STORED_MAP = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "l",
    "extra_keys": [["salt"], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}
CLEARED = ["AllBlocksCleared"]
STORED_ARRAY = ["BlockStored", *(v for k, v in STORED_MAP.items() if k != "type")]
STORED = BlocksStored(
    hashes=(11, 12),
    parent=10,
    packed_tokens=pack_tokens([1, 2, 3, 4]),
    block_size=2,
    medium="GPU",
    lora_name="l",
    extra_keys=[["salt"], None],
    group=0,
    spec_kind="full_attention",
)


@pytest.mark.parametrize(
    ("event", "expected", "why"),
    [
        (STORED_MAP, STORED, "0.24 and later: a map"),
        (STORED_ARRAY, STORED, "up to 0.23: an array"),
        ({**STORED_MAP, "session_id": "s", "locality": "LOCAL"}, STORED, "later fields"),
        ([*STORED_ARRAY, None, "LOCAL", "new"], STORED, "later elements"),
        (
            ["BlockStored", [b"\x01", b"\x02"], None, [1, 2], 1, None],
            BlocksStored((1, 2), None, pack_tokens([1, 2]), 1),
            "bytes hashes; trailing defaults left out",
        ),
        (
            ["BlockStored", [-5], 2**64 - 6, [1], 1],
            BlocksStored((2**60 - 5,), 2**60 - 6, pack_tokens([1]), 1),
            "LMCache's signed hashes are the unsigned ones, cut to 60 bits",
        ),
        (
            ["BlockStored", [b"\xff" * 24 + b"\x01" * 8], 0x0101010101010101, [1], 1],
            BlocksStored((0x101010101010101,), 0x101010101010101, pack_tokens([1]), 1),
            "a whole hash and its last 8 bytes are the same name",
        ),
        (
            ["BlockStored", [1], None, [1], 1, None, None, None, ["img", ["a", 0], None]],
            BlocksStored((1,), None, pack_tokens([1]), 1, None, None, [["img"], ["a", 0], None]),
            "bare extra keys",
        ),
        (
            {
                "type": "BlockStored",
                "block_hashes": [1],
                "token_ids": [],
                "block_size": 0,
                "medium": "CPU",
            },
            BlocksStored((1,), None, b"", 0, "CPU"),
            "an offload tells no token ids",
        ),
        ({"type": "BlockRemoved", "block_hashes": [7]}, BlocksRemoved([7]), "map"),
        (["BlockRemoved", [7], "CPU", 1], BlocksRemoved([7], "CPU", 1), "array"),
        ({"type": "AllBlocksCleared"}, AllCleared(), "map"),
        (["AllBlocksCleared"], AllCleared(), "array"),
    ],
)
def test_an_event(event, expected, why):
    assert list(batch_events(batch(event))) == [expected], why


@pytest.mark.parametrize(
    "event",
    [
        {"type": "SomethingNew", "x": 1},
        {"no": "type"},
        ["BlockStored"],
        [],
        [["BlockStored"], [1]],
        {"type": ["BlockStored"]},
        [["BlockStored"], "x" * LARGE_BYTES],
        7,
        None,
        {**STORED_MAP, "token_ids": ["a"]},
        {**STORED_MAP, "token_ids": [-1]},
        {**STORED_MAP, "token_ids": 5},
        {**STORED_MAP, "block_hashes": ["text"]},
        {**STORED_MAP, "block_size": "x"},
        {"type": "BlockRemoved"},
    ],
)
def test_an_event_that_makes_no_sense_is_counted_and_the_others_stand(event):
    read = [found for found in batch_events(batch(event, CLEARED)) if found is not Pause.HERE]
    assert read == [None, AllCleared()]


def test_removals_in_a_row_of_one_medium_and_group_are_one():
    gone = [["BlockRemoved", [number], "GPU", 0] for number in range(130)]
    events = list(batch_events(batch(*gone, ["BlockRemoved", [1], "CPU", 0], None, gone[0])))
    assert events == [
        BlocksRemoved(list(range(128)), "GPU", 0),
        BlocksRemoved([128, 129], "GPU", 0),
        BlocksRemoved([1], "CPU", 0),
        None,
        BlocksRemoved([0], "GPU", 0),
    ]


def test_text_that_is_no_utf8_costs_only_its_own_event():
    broken = msgspec.msgpack.encode([1.0, [["BlockRemoved", [7], "GPU!"], ["AllBlocksCleared"]]])
    broken = broken.replace(b"GPU!", b"GP\xff!")
    assert list(batch_events(broken)) == [None, AllCleared()]


@pytest.mark.parametrize("members", [(), (0,), (0, "more")])
def test_a_batch_has_two_members_or_more(members):
    payload = msgspec.msgpack.encode([1.0, [["AllBlocksCleared"]], *members])
    assert list(batch_events(payload)) == [AllCleared()]


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93", msgspec.msgpack.encode({"a": 1})])
def test_what_is_no_batch(payload):
    with pytest.raises(BatchUnreadable):
        list(batch_events(payload))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_batch_or_unreadable_and_nothing_else(payload):
    with contextlib.suppress(BatchUnreadable):
        list(batch_events(payload))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_everything_that_a_real_engine_sent_is_read(path):
    decoded = [list(batch_events(payload)) for _, _, payload in batches(path)]
    assert decoded
    assert all(events and None not in events for events in decoded)
    for event in (event for events in decoded for event in events):
        if isinstance(event, BlocksStored):
            assert len(event.packed_tokens) == 4 * event.block_size * len(event.hashes)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_a_real_batch_that_is_cut_anywhere_is_unreadable(path):
    payload = min((payload for _, _, payload in batches(path)), key=len)
    for end in range(len(payload)):
        with pytest.raises(BatchUnreadable):
            list(batch_events(payload[:end]))


@given(st.sampled_from(CAPTURES), st.data())
def test_a_real_batch_with_any_byte_changed_stops_nothing(path, data):
    payload = next(batches(path))[2]
    at = data.draw(st.integers(0, len(payload) - 1))
    broken = payload[:at] + bytes([data.draw(st.integers(0, 255))]) + payload[at + 1 :]
    with contextlib.suppress(BatchUnreadable):
        list(batch_events(broken))
