"""KV event batches: msgpack bytes to events. Pure.

vLLM up to 0.23 sends each event as an array with its type first, later versions as a map with a
`type` field. Both are read; unknown fields, elements and event types are passed over, and an event
that makes no sense is counted and skipped, so that a new engine version never stops the index.

A batch is cut into its events first, and each is decoded when its turn comes: a large one then
does not hold up the requests beside it (gateway/kvevents/turns.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from routing.hashing import pack_tokens
from routing.value import value

Handle = int
"""The engine's own name of a block, cut to 60 bits: opaque here, only good for removals."""

# Two of the 30-bit digits that Python makes integers of: 16 bytes less than 64 bits take. Among
# the million blocks of a large cache, two share a handle once in two million caches; that costs a
# wrong guess, as every collision of keys does (docs/adr/0001).
_HANDLE_MASK = 2**60 - 1
# vLLM names a block by the last 8 bytes of its hash, or by all of it (VLLM_KV_EVENTS_USE_INT_BLOCK_
# HASHES); cut so, both are the same handle.
_INT_HASH_BYTES = 8

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


@value
class BlocksStored:
    """A run of full blocks that an engine now holds.

    Attributes:
        hashes: The engine's names, one a block.
        parent: Its name of the block before them; None at the start of a prompt.
        packed_tokens: Token ids of exactly these blocks, as `routing.hashing.pack_tokens` packs;
            empty where blocks that are known already were copied to another medium.
        block_size: Tokens a block; 0 where there are no token ids.
        medium: Where; None and "GPU" are the replica's GPU.
        lora_name: LoRA adapter; None for the base model.
        extra_keys: What else separates the blocks (media, salt), one entry a block; None if none.
        group: The KV cache group, of models that have several; None before vLLM 0.20.
        spec_kind: The kind of that group; None before vLLM 0.22.
    """

    hashes: Sequence[Handle]
    parent: Handle | None
    packed_tokens: bytes
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Sequence[Any] | None = None
    group: int | None = None
    spec_kind: str | None = None


@value
class BlocksRemoved:
    """Blocks that an engine no longer holds in one medium and KV cache group."""

    hashes: Sequence[Handle]
    medium: str | None = None
    group: int | None = None


@value
class AllCleared:
    """The engine's cache is empty."""


Event = BlocksStored | BlocksRemoved | AllCleared

# Engines send a removal for each block; so many of them in a row are one event of ours.
_MAX_MERGED = 128
_BATCH = msgspec.msgpack.Decoder(list[msgspec.Raw])


class BatchUnreadable(Exception):
    """The payload is not a batch at all."""


def batch_events(payload: bytes) -> Iterator[Event | None]:
    """Return the events of `[timestamp, events, data_parallel_rank]`, decoded one by one.

    Returns:
        In order, removals that follow each other as one; None for an event that could not be read
        or is of an unknown type.

    Raises:
        BatchUnreadable: Not msgpack, or not of that shape.
    """
    try:
        members = _BATCH.decode(payload)
        raw_events = _BATCH.decode(members[1])
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError, RecursionError) as error:
        raise BatchUnreadable("not a batch of events") from error
    return _merged(_decoded(raw_events))


def _merged(events: Iterable[Event | None]) -> Iterator[Event | None]:
    """Make one removal of those that follow each other: half the work on a full cache."""
    handles: list[Handle] = []
    last: BlocksRemoved | None = None
    for event in events:
        if (
            isinstance(event, BlocksRemoved)
            and last is not None
            and (event.medium, event.group) == (last.medium, last.group)
            and len(handles) < _MAX_MERGED
        ):
            handles += event.hashes
            continue
        if last is not None:
            yield BlocksRemoved(handles, last.medium, last.group)
            last = None
        if isinstance(event, BlocksRemoved):
            last, handles = event, list(event.hashes)
        else:
            yield event
    if last is not None:
        yield BlocksRemoved(handles, last.medium, last.group)


def _decoded(raw_events: Iterable[msgspec.Raw]) -> Iterator[Event | None]:
    for raw in raw_events:
        try:
            yield _event(msgspec.msgpack.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield None


def _event(raw: Any) -> Event | None:
    kind, fields = _fields(raw)
    try:
        if kind == "BlockStored":
            return _stored(fields)
        if kind == "BlockRemoved":
            return _removed(fields)
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
        parent=None if parent is None else _handle(parent),
        packed_tokens=pack_tokens(fields["token_ids"] or ()),
        block_size=int(fields["block_size"]),
        medium=_text(fields.get("medium")),
        lora_name=_text(fields.get("lora_name")),
        extra_keys=_extra_keys(fields.get("extra_keys")),
        group=_group(fields.get("group_idx")),
        spec_kind=_text(fields.get("kv_cache_spec_kind")),
    )


def _removed(fields: Mapping[str, Any]) -> BlocksRemoved:
    return BlocksRemoved(
        hashes=_hashes(fields["block_hashes"]),
        medium=_text(fields.get("medium")),
        group=_group(fields.get("group_idx")),
    )


def _hashes(raw: Sequence[Any]) -> tuple[Handle, ...]:
    return tuple([_handle(item) for item in raw])


def _handle(raw: Any) -> Handle:
    if isinstance(raw, int):  # LMCache's are signed
        return raw & _HANDLE_MASK
    if isinstance(raw, bytes):
        return int.from_bytes(raw[-_INT_HASH_BYTES:], "big") & _HANDLE_MASK
    raise TypeError("a block hash is an integer or bytes")


def _group(raw: Any) -> int | None:
    return None if raw is None else int(raw)


def _extra_keys(raw: Any) -> list[list[Any] | None] | None:
    """Return extra keys block by block; an entry may be a list, one value, or nothing."""
    if raw is None:
        return None
    return [entry if isinstance(entry, list | None) else [entry] for entry in raw]


def _text(raw: Any) -> str | None:
    return None if raw is None else str(raw)
