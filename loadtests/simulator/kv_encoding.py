"""KV events as vLLM puts them on the wire.

`map` is the form of 0.24 and later (checked against 0.32), `array` that of 0.23 and before.

Source:
    vllm/distributed/kv_events.py; tests/data/vllm-0.32/kv_*.frames.bin.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from routing.lab.kv_events import BlockRemoved, BlockStored, KvEvent

_MEDIUM = "GPU"
_GROUP = 0
_SPEC_KIND = "full_attention"

Fields = dict[str, Any]


def encode_batch(
    events: Sequence[KvEvent], timestamp_s: float, block_size: int, form: str, rank: int = 0
) -> bytes:
    """Return the msgpack payload of one batch.

    Args:
        events: At least one, in order.
        timestamp_s: Unix time.
        block_size: Tokens a block.
        form: "map" or "array".
        rank: The engine's data-parallel rank.
    """
    shape = ENCODINGS[form]
    shaped = [shape(_fields(event, block_size)) for event in events]
    return msgspec.msgpack.encode([timestamp_s, shaped, rank])


def _fields(event: KvEvent, block_size: int) -> Fields:
    if isinstance(event, BlockStored):
        return {
            "type": "BlockStored",
            "block_hashes": event.block_hashes,
            "parent_block_hash": event.parent_hash,
            "token_ids": event.token_ids,
            "block_size": block_size,
            "lora_id": None if event.lora_name is None else 1,
            "medium": _MEDIUM,
            "lora_name": event.lora_name,
            "extra_keys": _extra_keys(event),
            "group_idx": _GROUP,
            "kv_cache_spec_kind": _SPEC_KIND,
        }
    if isinstance(event, BlockRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": [event.block_hash],
            "medium": _MEDIUM,
            "group_idx": _GROUP,
        }
    return {"type": "AllBlocksCleared"}


def _extra_keys(event: BlockStored) -> list[list[str] | None]:
    """Return what vLLM mixes into each block: the adapter everywhere, the salt in the first."""
    adapter = [] if event.lora_name is None else [event.lora_name]
    keys = [list(adapter) for _ in event.block_hashes]
    if event.cache_salt is not None and event.parent_hash is None:
        keys[0].append(event.cache_salt)
    return [key or None for key in keys]


def _as_map(fields: Fields) -> Fields:
    return fields


def _as_array(fields: Fields) -> list[Any]:
    return list(fields.values())


ENCODINGS: Mapping[str, Callable[[Fields], Any]] = MappingProxyType(
    {"map": _as_map, "array": _as_array}
)
