"""Long lists of token ids in msgpack, read piece by piece. Pure.

A decoder works until it is through: 3 ms for the 131,000 token ids of one long prompt, in which no
stream moves on. Msgpack has no index of a list's items, so where a piece ends is found by a regular
expression over the items before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from routing.hashing import pack_tokens

# Ids a piece: 0.5 ms to find its end, 0.2 ms to decode and pack it.
PIECE_IDS = 8192

# An unsigned integer of at most 32 bits, as msgpack writes it in 1 to 5 bytes.
_ID = rb"(?:[\x00-\x7f]|\xcc.|\xcd..|\xce....)"
_PIECE = re.compile(rb"(?s)" + _ID + rb"{%d}+" % PIECE_IDS)
_IDS = msgspec.msgpack.Decoder(list[int])
_NIL = b"\xc0"
# Heads of lists: the byte, and how many behind it have the number of items.
_LIST_16 = b"\xdc"
_LIST_32 = b"\xdd"


def packed_in_pieces(raw: bytes) -> Iterator[bytes]:
    """Yield a list's token ids, packed, in pieces of `PIECE_IDS`; nothing for nil.

    Args:
        raw: A list in msgpack, or nil.

    Raises:
        ValueError: It is neither, or an item is no unsigned integer of 32 bits.
    """
    if raw == _NIL:
        return
    num_left, at = _head(raw)
    while num_left > PIECE_IDS:
        piece = _PIECE.match(raw, at)
        if piece is None:
            raise ValueError("not a list of token ids")
        yield _packed(piece[0], PIECE_IDS)
        num_left, at = num_left - PIECE_IDS, piece.end()
    yield _packed(raw[at:], num_left)


def _head(raw: bytes) -> tuple[int, int]:
    """Return a list's number of items, and where they begin."""
    kind = raw[:1]
    if kind == _LIST_32:
        return int.from_bytes(raw[1:5], "big"), 5
    if kind == _LIST_16:
        return int.from_bytes(raw[1:3], "big"), 3
    if b"\x90" <= kind <= b"\x9f":
        return kind[0] & 0x0F, 1
    raise ValueError("not a list")


def _packed(items: bytes, num_items: int) -> bytes:
    try:
        return pack_tokens(_IDS.decode(_LIST_16 + num_items.to_bytes(2, "big") + items))
    except (msgspec.DecodeError, OverflowError) as error:
        raise ValueError("not a list of token ids") from error
