"""KV event batches: msgpack bytes to events. Pure.

vLLM up to 0.23 sends each event as an array with its type first, later versions as a map with a
`type` field. Both are read; unknown fields, elements and event types are passed over, and an event
that makes no sense is counted and skipped, so that a new engine version never stops the index.

A batch is cut into its events first, and each is decoded when its turn comes: a large one then
does not hold up the requests beside it (gateway/kvevents/turns.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from gateway.kvevents.longlists import packed_in_pieces
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
_NAMES: Mapping[str, Sequence[str]] = MappingProxyType(
    {"BlockStored": _STORED_FIELDS, "BlockRemoved": _REMOVED_FIELDS}
)


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


class Pause(Enum):
    """Between two parts of the work on one large event."""

    HERE = "here"


# Bytes that are looked through, or decoded, in 0.3 to 0.8 ms: an event of 27,000 tokens. Longer
# ones are rare: a whole long prompt that an engine reports again, an offload of a whole cache.
LARGE_BYTES = 128 * 1024
# Engines send a removal for each block; so many of them in a row are one event of ours.
_MAX_MERGED = 128


class _Batch(msgspec.Struct, array_like=True):
    """What is read of a batch, in one look through it; more members are passed over."""

    timestamp: msgspec.Raw
    events: list[msgspec.Raw]


_BATCH = msgspec.msgpack.Decoder(_Batch)
_LIST = msgspec.msgpack.Decoder(list[msgspec.Raw])
_FIELDS = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_NOTHING = msgspec.Raw(b"\xc0")
_Named = TypeVar("_Named", BlocksStored, BlocksRemoved)


class BatchUnreadable(Exception):
    """The payload is not a batch at all."""


def batch_events(payload: bytes) -> Iterator[Event | Pause | None]:
    """Return the events of `[timestamp, events, data_parallel_rank]`, decoded one by one.

    Returns:
        In order, removals that follow each other as one, and long ones as several; None for an
        event that could not be read or is of an unknown type. Between two items is less than 2 ms
        of work, whatever the size of an event.

    Raises:
        BatchUnreadable: Not msgpack, or not of that shape.
    """
    try:
        batch = _BATCH.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatchUnreadable("not a batch of events") from error
    return _merged(_decoded(batch.events))


def _merged(events: Iterable[Event | Pause | None]) -> Iterator[Event | Pause | None]:
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
            yield from _cut(last, handles)
            last = None
        if isinstance(event, BlocksRemoved):
            last, handles = event, list(event.hashes)
        elif isinstance(event, BlocksStored) and not event.packed_tokens:
            yield from _cut(event, event.hashes)
        else:
            yield event
    if last is not None:
        yield from _cut(last, handles)


def _cut(event: _Named, hashes: Sequence[Handle]) -> Iterator[_Named]:
    """Yield an event that only names blocks, in parts that take 0.5 ms each."""
    for start in range(0, max(1, len(hashes)), _MAX_MERGED):
        yield replace(event, hashes=hashes[start : start + _MAX_MERGED])


def _decoded(raw_events: Iterable[msgspec.Raw]) -> Iterator[Event | Pause | None]:
    for raw in raw_events:
        try:
            if len(memoryview(raw)) > LARGE_BYTES:
                yield from _large(bytes(raw))
            else:
                yield _event(*_fields(msgspec.msgpack.decode(raw)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
            yield None


def _large(raw: bytes) -> Iterator[Event | Pause | None]:
    """Decode a large event part by part; nearly all of one are token ids."""
    yield Pause.HERE
    kind, parts = _raw_fields(raw)
    yield Pause.HERE
    packed = bytearray()
    for piece in packed_in_pieces(bytes(parts.pop("token_ids", _NOTHING))):
        packed += piece
        yield Pause.HERE
    fields = {name: msgspec.msgpack.decode(part) for name, part in parts.items()}
    yield _event(kind, {**fields, "token_ids": bytes(packed)})


def _raw_fields(raw: bytes) -> tuple[Any, dict[str, msgspec.Raw]]:
    """Return an event's type and its other fields, which are not decoded yet."""
    try:
        by_name = _FIELDS.decode(raw)
    except msgspec.DecodeError:
        first, *parts = _LIST.decode(raw)
        kind = msgspec.msgpack.decode(first)
        return kind, dict(zip(_names(kind), parts, strict=False))
    return msgspec.msgpack.decode(by_name.pop("type", _NOTHING)), by_name


def _event(kind: Any, fields: Mapping[str, Any]) -> Event | None:
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
        return raw[0], dict(zip(_names(raw[0]), raw[1:], strict=False))
    return None, {}


def _names(kind: Any) -> Sequence[str]:
    """Return what an array's elements behind its type are; nothing for a type of no use to us."""
    return _NAMES.get(kind, ()) if isinstance(kind, str) else ()


def _stored(fields: Mapping[str, Any]) -> BlocksStored:
    parent = fields.get("parent_block_hash")
    return BlocksStored(
        hashes=_hashes(fields["block_hashes"]),
        parent=None if parent is None else _handle(parent),
        packed_tokens=_packed(fields["token_ids"]),
        block_size=int(fields["block_size"]),
        medium=_text(fields.get("medium")),
        lora_name=_text(fields.get("lora_name")),
        extra_keys=_extra_keys(fields.get("extra_keys")),
        group=_group(fields.get("group_idx")),
        spec_kind=_text(fields.get("kv_cache_spec_kind")),
    )


def _packed(token_ids: Any) -> bytes:
    """Return token ids packed, if they are not already."""
    return token_ids if isinstance(token_ids, bytes) else pack_tokens(token_ids or ())


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
