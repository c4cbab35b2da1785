"""What waits to be written, by segment and in order. Pure."""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from routing.types import BlockKey, Tier
from routing.value import value

# Blocks that one run of the script changes, at most: about 5 ms of the server's time.
MAX_CALL_BLOCKS = 1000
_HEAD = struct.Struct("<cBHQ")
_BEGINS = 0  # in the place of a parent: the block begins its segment


@value
class Write:
    """Changes of what one life holds of one segment, in order.

    Attributes:
        anchor: Names the segment.
        num_blocks: How many blocks the changes name.
        packed: As the script reads them.
    """

    life: int
    anchor: BlockKey
    num_blocks: int
    packed: bytes


@dataclass(slots=True)
class _Piece:
    """Changes of one segment that one run of the script may have.

    Packed as they come: in a flood most changes are of one block, and as objects of their own they
    would take seven times the memory.
    """

    num_blocks: int = 0
    packed: bytearray = field(default_factory=bytearray)


class WriteQueue:
    """Changes of blocks, joined by segment."""

    def __init__(self) -> None:
        # Of a plain dictionary the first entry is found by passing all that were taken before it.
        self._waiting: OrderedDict[tuple[int, BlockKey], list[_Piece]] = OrderedDict()
        self.num_blocks = 0

    def store(
        self,
        life: int,
        anchor: BlockKey,
        parent: BlockKey | None,
        keys: Sequence[BlockKey],
        tier: Tier,
    ) -> None:
        """Add that a life holds blocks that follow each other, the first one `parent`."""
        self._add(life, anchor, keys, b"S", parent or _BEGINS, tier)

    def remove(self, life: int, anchor: BlockKey, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Add that a life no longer holds blocks of a segment."""
        self._add(life, anchor, keys, b"R", _BEGINS, tier)

    def drop(self, life: int) -> int:
        """Forget all changes of a life; how many blocks they name."""
        gone = [key for key in self._waiting if key[0] == life]
        num_blocks = sum(piece.num_blocks for key in gone for piece in self._waiting.pop(key))
        self.num_blocks -= num_blocks
        return num_blocks

    def take(self, max_blocks: int, max_writes: int) -> list[Write]:
        """Take out what came first, up to some blocks and writes, or one segment's."""
        taken: list[Write] = []
        while self._waiting and max_blocks > 0 and len(taken) < max_writes:
            (life, anchor), pieces = self._waiting.popitem(last=False)
            for piece in pieces:
                self.num_blocks -= piece.num_blocks
                max_blocks -= piece.num_blocks
                taken.append(Write(life, anchor, piece.num_blocks, bytes(piece.packed)))
        return taken

    def _add(
        self,
        life: int,
        anchor: BlockKey,
        keys: Sequence[BlockKey],
        kind: bytes,
        parent: int,
        tier: Tier,
    ) -> None:
        pieces = self._waiting.setdefault((life, anchor), [])
        for start in range(0, len(keys), MAX_CALL_BLOCKS):
            some = keys[start : start + MAX_CALL_BLOCKS]
            if start:
                parent = keys[start - 1] if kind == b"S" else _BEGINS
            if not pieces or pieces[-1].num_blocks + len(some) > MAX_CALL_BLOCKS:
                pieces.append(_Piece())
            piece = pieces[-1]
            # The pool is a life of its own, which has one tier.
            piece.packed += _HEAD.pack(kind, tier is Tier.L1, len(some), parent)
            piece.packed += array("Q", some).tobytes()
            piece.num_blocks += len(some)
        self.num_blocks += len(keys)
