"""Prompts cut into segments, which is how the index lies in Redis. Pure.

The chain of a prompt's blocks is cut by its content: a block whose key is divisible by
`SEGMENT_BLOCKS` begins a segment, and so does the first one. Prompts that share a beginning are
cut at the same places, so they share segments, and a removal needs no more than the block's key
and its segment's anchor, the key of its first block (docs/redis.md).
"""

from __future__ import annotations

from array import array
from binascii import hexlify
from collections.abc import Sequence

import numpy as np

from gateway.redis.layout import of_layout
from routing.types import BlockKey
from routing.value import value

# Blocks of a segment on average, a power of two. Of a prompt of 2,048 blocks 32 hashes are looked
# at, and a hash of so few fields is kept in one piece, at a quarter of the memory.
SEGMENT_BLOCKS = 64
KEY_BYTES = 8


@value
class Cut:
    """A prompt's segments.

    Attributes:
        packed: All block keys, 8 bytes each, the lowest first.
        starts: Where segments begin, in blocks, with the number of all blocks at the end.
        tags: By segment the key of its first block in hexadecimal, which names it.
    """

    packed: bytes
    starts: Sequence[int]
    tags: Sequence[bytes]

    def last(self, segment: int) -> bytes:
        """Return the key of a segment's last block, which stands for all before it."""
        at = self.starts[segment + 1] * KEY_BYTES
        return self.packed[at - KEY_BYTES : at]

    def blocks(self, first: int, stop: int) -> bytes:
        """Return the keys of segments from one up to another."""
        return self.packed[self.starts[first] * KEY_BYTES : self.starts[stop] * KEY_BYTES]

    def lengths(self, first: int, stop: int) -> bytes:
        """Return how many blocks segments have, 2 bytes each."""
        starts = self.starts
        return array("H", [starts[n + 1] - starts[n] for n in range(first, stop)]).tobytes()

    @property
    def num_segments(self) -> int:
        """How many there are."""
        return len(self.starts) - 1


def cut(keys: Sequence[BlockKey]) -> Cut:
    """Return a whole prompt's segments; `keys` is not empty."""
    packed = array("Q", keys).tobytes()
    numbers = np.frombuffer(packed, np.uint64)
    begins = np.flatnonzero((numbers & np.uint64(SEGMENT_BLOCKS - 1)) == 0).tolist()
    if not begins or begins[0]:
        begins.insert(0, 0)
    digits = hexlify(numbers[begins].byteswap().tobytes())
    tags = [digits[at : at + 16] for at in range(0, len(digits), 16)]
    begins.append(len(keys))
    return Cut(packed, begins, tags)


def tag_of(anchor: BlockKey) -> bytes:
    """Return what names the segment that a block begins."""
    return b"%016x" % anchor


def begins_segment(key: BlockKey) -> bool:
    """Return whether a block begins a segment wherever in a prompt it is."""
    return not key % SEGMENT_BLOCKS


class Names:
    """Names of Redis keys.

    Args:
        namespace: Of all keys.

    Attributes:
        kind: What the names of blocks' hashes begin with.
        predicted_kind: The same for predictions.
    """

    def __init__(self, namespace: str) -> None:
        self.kind = f"{of_layout(namespace)}:b:".encode()
        self.predicted_kind = f"{of_layout(namespace)}:p:".encode()

    def of_blocks(self, tag: bytes) -> bytes:
        """Return the hash of a segment; all that belongs to it is in the same slot."""
        return b"%b{%b}" % (self.kind, tag)

    def of_predictions(self, tag: bytes) -> bytes:
        """Return the hash of a segment's predictions."""
        return b"%b{%b}" % (self.predicted_kind, tag)
