"""Which holders have a block: one bit mask a block, in many small dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from routing.types import BlockKey

# A dictionary grows in one step, and where blocks come and go it is made anew for ever: 16 ms for
# the 200,000 blocks of eight replicas, 65 ms for a million. In so many parts 2 million blocks, the
# default of `index.max_blocks`, take 0.5 ms a part; the parts' numbers are all integers that
# Python has made already.
_NUM_PARTS = 256


class Holders:
    """Block key -> mask of its holders. A block without holders is not there."""

    def __init__(self) -> None:
        self._parts: Sequence[dict[BlockKey, int]] = tuple({} for _ in range(_NUM_PARTS))
        self._num_blocks = 0

    def __len__(self) -> int:
        return self._num_blocks

    def of(self, key: BlockKey) -> int:
        """Return the mask of a block; 0 where it has no holder."""
        return self._parts[key % _NUM_PARTS].get(key, 0)

    def along(self, keys: Iterable[BlockKey]) -> Iterator[int]:
        """Yield the mask of each block: `of`, without a call for each."""
        parts = self._parts
        return (parts[key % _NUM_PARTS].get(key, 0) for key in keys)

    def among(self, keys: Iterable[BlockKey], mask: int) -> set[BlockKey]:
        """Return which of some blocks have one of the holders in `mask`."""
        parts = self._parts
        return {key for key in keys if parts[key % _NUM_PARTS].get(key, 0) & mask}

    def add(self, keys: Iterable[BlockKey], mask: int, max_blocks: int | None = None) -> int:
        """Add holders to blocks.

        Args:
            keys: The blocks.
            mask: The holders, one at least.
            max_blocks: Blocks at most; new ones beyond are left out. None for no bound.

        Returns:
            How many were left out.
        """
        parts, num_blocks, num_refused = self._parts, self._num_blocks, 0
        for key in keys:
            part = parts[key % _NUM_PARTS]
            held = part.get(key)
            if held is not None:
                part[key] = held | mask
            elif max_blocks is None or num_blocks < max_blocks:
                part[key] = mask  # one object for all blocks of one holder
                num_blocks += 1
            else:
                num_refused += 1
        self._num_blocks = num_blocks
        return num_refused

    def discard(self, keys: Iterable[BlockKey], mask: int) -> None:
        """Take holders away from blocks, where they have them."""
        parts, others, num_gone = self._parts, ~mask, 0
        for key in keys:
            part = parts[key % _NUM_PARTS]
            held = part.get(key)
            if held is None:
                continue
            held &= others
            if held:
                part[key] = held
            else:
                del part[key]
                num_gone += 1
        self._num_blocks -= num_gone
