"""KV event batches: msgpack bytes to events. Pure.

vLLM up to 0.23 sends each event as an array with its type first, later versions as a map with a
`type` field. Both are read; unknown fields, elements and event types are passed over, and an event
that makes no sense is counted and skipped, so that a new engine version never stops the index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from routing.hashing import pack_tokens

EngineHash = int | bytes
"""The engine's own name of a block: opaque here, only good for removals."""

# Fields in the order of the array encoding, without the type (vLLM's kv_events.py).
_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """A run of full blocks that an engine now holds.

    Attributes:
        hashes: The engine's names, one a block.
        parent: Its name of the block before them; None at the start of a prompt.
        packed_tokens: Token ids of exactly these blocks, as `routing.hashing.pack_tokens` packs.
        block_size: Tokens a block.
        medium: Where; None and "GPU" are the replica's GPU.
        lora_name: LoRA adapter; None for the base model.
        extra_keys: What else separates the blocks (media, salt), one entry a block; None if none.
        spec_kind: The kind of the KV cache group.
    """

    hashes: Sequence[EngineHash]
    parent: EngineHash | None
    packed_tokens: bytes
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Sequence[Any] | None = None
    spec_kind: str | None = None


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that an engine no longer holds in one medium."""

    hashes: Sequence[EngineHash]
    medium: str | None = None


@dataclass(frozen=True, slots=True)
class AllCleared:
    """The engine's cache is empty."""


Event = BlocksStored | BlocksRemoved | AllCleared


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one engine step.

    Attributes:
        events: In order.
        num_skipped: Events that could not be read or are of an unknown type.
    """

    events: tuple[Event, ...]
    num_skipped: int = 0


class BatchUnreadable(Exception):
    """The payload is not a batch at all."""


def decode_batch(payload: bytes) -> Batch:
    """Decode `[timestamp, events, data_parallel_rank]`.

    Raises:
        BatchUnreadable: Not msgpack, or not of that shape.
    """
    try:
        decoded = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BatchUnreadable("not msgpack") from error
    if not isinstance(decoded, list) or len(decoded) < 2 or not isinstance(decoded[1], list):
        raise BatchUnreadable("not a batch of events")
    events: list[Event] = []
    num_skipped = 0
    for raw in decoded[1]:
        event = _event(raw)
        if event is None:
            num_skipped += 1
        else:
            events.append(event)
    return Batch(tuple(events), num_skipped)


def _event(raw: Any) -> Event | None:
    kind, fields = _fields(raw)
    try:
        if kind == "BlockStored":
            return _stored(fields)
        if kind == "BlockRemoved":
            return BlocksRemoved(_hashes(fields["block_hashes"]), _text(fields.get("medium")))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return AllCleared() if kind == "AllBlocksCleared" else None


def _fields(raw: Any) -> tuple[Any, Mapping[str, Any]]:
    if isinstance(raw, dict):
        return raw.get("type"), raw
    if isinstance(raw, list) and raw:
        names = {"BlockStored": _STORED_FIELDS, "BlockRemoved": _REMOVED_FIELDS}.get(raw[0], ())
        return raw[0], dict(zip(names, raw[1:], strict=False))
    return None, {}


def _stored(fields: Mapping[str, Any]) -> BlocksStored:
    parent = fields.get("parent_block_hash")
    return BlocksStored(
        hashes=_hashes(fields["block_hashes"]),
        parent=None if parent is None else _hash(parent),
        packed_tokens=pack_tokens(fields["token_ids"]),
        block_size=int(fields["block_size"]),
        medium=_text(fields.get("medium")),
        lora_name=_text(fields.get("lora_name")),
        extra_keys=fields.get("extra_keys"),
        spec_kind=_text(fields.get("kv_cache_spec_kind")),
    )


def _hashes(raw: Sequence[Any]) -> tuple[EngineHash, ...]:
    return tuple(_hash(item) for item in raw)


def _hash(raw: Any) -> EngineHash:
    if isinstance(raw, int | bytes):
        return raw
    raise TypeError("a block hash is an integer or bytes")


def _text(raw: Any) -> str | None:
    return None if raw is None else str(raw)
