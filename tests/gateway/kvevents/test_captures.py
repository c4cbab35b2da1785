"""Every capture of a real engine, replayed: what is known in the end is what the engine held."""

from pathlib import Path

import msgspec
import pytest

from gateway.kvevents.decode import batch_events
from gateway.kvevents.translate import Cleared, Removed, Stored, Translator
from routing.hashing import HashSpec, block_keys, pack_tokens
from routing.types import Tier
from tests.support.captures import batches

DATA = Path(__file__).parents[2] / "data" / "vllm-0.32"
CAPTURES = sorted(DATA.glob("kv_*.frames.bin"))
BLOCK_SIZE = 32


def test_all_kinds_are_there():
    names = {file.name.removesuffix(".frames.bin") for file in CAPTURES}
    assert names >= {"kv_A", "kv_B", "kv_A_reset", "kv_A_restart", "kv_evict_A"}
    assert names >= {"kv_lmc_A", "kv_lmc_B", "kv_retain_B"}


def held_by_engine(file):
    """Return the token ids of each block that the engine held in the end, with all before it.

    Written down as the events say it, without any of the gateway's code. A number that goes back
    is another process.
    """
    prefix_by_hash, last = {}, -1
    for _, number, payload in batches(file):
        if number <= last:
            prefix_by_hash.clear()
        last = number
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                prefix_by_hash.clear()
            elif event["type"] == "BlockRemoved":
                for name in event["block_hashes"]:
                    del prefix_by_hash[name]
            else:
                before = prefix_by_hash.get(event["parent_block_hash"], [])
                assert len(before) or event["parent_block_hash"] is None
                for i, name in enumerate(event["block_hashes"]):
                    own = event["token_ids"][BLOCK_SIZE * i : BLOCK_SIZE * (i + 1)]
                    before = prefix_by_hash[name] = [*before, *own]
    return list(prefix_by_hash.values())


def known_here(file):
    """Return the keys that the index would hold in the end, and what was skipped."""
    held, last = set(), -1
    translator = Translator("m", 10_000, lambda keys, tier: held & {(tier, key) for key in keys})
    for _, number, payload in batches(file):
        events = list(batch_events(payload))
        changes = [translator.clear()] if number <= last else []
        last = number
        translator.begin_batch()
        for change in changes + [c for event in events for c in translator.apply(event, 0.0)]:
            match change:
                case Stored():
                    held |= {(change.tier, key) for key in change.keys}
                case Removed():
                    held -= {(change.tier, key) for key in change.keys}
                case Cleared():
                    held.clear()
    assert translator.num_blocks == len(held)
    return held, translator.skipped


@pytest.mark.parametrize("file", CAPTURES, ids=lambda file: file.name.partition(".")[0])
def test_a_replayed_capture_ends_with_what_the_engine_held(file):
    held, skipped = known_here(file)
    spec = HashSpec("m", BLOCK_SIZE)
    expected = {(Tier.L0, block_keys(pack_tokens(ids), spec)[-1]) for ids in held_by_engine(file)}
    assert held == expected
    assert len(held) > 0
    assert not skipped
