"""KV event batches: both encodings, every field, and what makes no sense."""

import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kvevents.decode import (
    AllCleared,
    BatchUnreadable,
    BlocksRemoved,
    BlocksStored,
    decode_batch,
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
STORED_ARRAY = ["BlockStored", *(v for k, v in STORED_MAP.items() if k != "type")]
STORED = BlocksStored(
    hashes=(11, 12),
    parent=10,
    packed_tokens=pack_tokens([1, 2, 3, 4]),
    block_size=2,
    medium="GPU",
    lora_name="l",
    extra_keys=[["salt"], None],
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
            BlocksStored((b"\x01", b"\x02"), None, pack_tokens([1, 2]), 1),
            "bytes hashes; trailing defaults left out",
        ),
        (
            ["BlockStored", [-5], None, [1], 1],
            BlocksStored((-5,), None, pack_tokens([1]), 1),
            "LMCache's signed hashes",
        ),
        ({"type": "BlockRemoved", "block_hashes": [7]}, BlocksRemoved((7,)), "map"),
        (["BlockRemoved", [7], "CPU"], BlocksRemoved((7,), "CPU"), "array"),
        ({"type": "AllBlocksCleared"}, AllCleared(), "map"),
        (["AllBlocksCleared"], AllCleared(), "array"),
    ],
)
def test_an_event(event, expected, why):
    assert decode_batch(batch(event)).events == (expected,), why


@pytest.mark.parametrize(
    "event",
    [
        {"type": "SomethingNew", "x": 1},
        {"no": "type"},
        ["BlockStored"],
        [],
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
    decoded = decode_batch(batch(event, ["AllBlocksCleared"]))
    assert (decoded.events, decoded.num_skipped) == ((AllCleared(),), 1)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93", msgspec.msgpack.encode({"a": 1})])
def test_what_is_no_batch(payload):
    with pytest.raises(BatchUnreadable):
        decode_batch(payload)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_batch_or_unreadable_and_nothing_else(payload):
    with contextlib.suppress(BatchUnreadable):
        decode_batch(payload)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_everything_that_a_real_engine_sent_is_read(path):
    decoded = [decode_batch(payload) for _, _, payload in batches(path)]
    assert decoded
    assert all(batch.events and not batch.num_skipped for batch in decoded)
    for event in (event for batch in decoded for event in batch.events):
        if isinstance(event, BlocksStored):
            assert len(event.packed_tokens) == 4 * event.block_size * len(event.hashes)
