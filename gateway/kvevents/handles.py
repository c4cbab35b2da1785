"""The engine's block names and our keys of them, in little memory. Pure.

A dictionary takes 130 bytes for each name on a full cache: two integers of which one is only there,
and a table that is kept twice as large as it needs to be where entries come and go. Names and keys
are 64-bit numbers, so here they lie side by side in arrays, 24 to 48 bytes a block.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from gateway.kvevents.decode import Handle
from routing.types import BlockKey

# Tables by the last bits of the name: each is small, so that making one anew takes 1 ms for the
# 500,000 blocks of a host's memory.
_SHARD_BITS = 6
_SHARD_MASK = 2**_SHARD_BITS - 1
# Names have 60 bits, so these are none.
_EMPTY = 2**64 - 1
_GONE = 2**64 - 2
_MIN_SLOTS = 8


class KeyByHandle:
    """Open addressing with linear probing: of each slot the name and, behind it, the key."""

    def __init__(self) -> None:
        self._tables = [_table(_MIN_SLOTS) for _ in range(_SHARD_MASK + 1)]
        self._num_free = [_room(_MIN_SLOTS)] * (_SHARD_MASK + 1)
        self._num_keys = 0

    def __len__(self) -> int:
        return self._num_keys

    def get(self, handle: Handle) -> BlockKey | None:
        """Return the key of a name; None where it is not known."""
        table = self._tables[handle & _SHARD_MASK]
        mask = len(table) - 2
        at = (handle >> _SHARD_BITS << 1) & mask
        while (found := table[at]) != handle:
            if found == _EMPTY:
                return None
            at = (at + 2) & mask
        return BlockKey(table[at + 1])

    def get_all(self, handles: Iterable[Handle]) -> list[BlockKey | None]:
        """Return the key of each name: `get`, without a call for each."""
        keys: list[BlockKey | None] = []
        append, tables = keys.append, self._tables
        for handle in handles:
            table = tables[handle & _SHARD_MASK]
            mask = len(table) - 2
            at = (handle >> _SHARD_BITS << 1) & mask
            while (found := table[at]) != handle and found != _EMPTY:
                at = (at + 2) & mask
            append(None if found == _EMPTY else BlockKey(table[at + 1]))
        return keys

    def add(self, named: Iterable[tuple[Handle, BlockKey]]) -> None:
        """Take in names that are not known yet."""
        for handle, key in named:
            shard = handle & _SHARD_MASK
            if not self._num_free[shard]:
                self._make_room(shard)
            _put(self._tables[shard], handle, key)
            self._num_free[shard] -= 1
            self._num_keys += 1

    def pop(self, handle: Handle) -> BlockKey | None:
        """Forget a name; return its key, or None where it is not known."""
        table = self._tables[handle & _SHARD_MASK]
        mask = len(table) - 2
        at = (handle >> _SHARD_BITS << 1) & mask
        while (found := table[at]) != handle:
            if found == _EMPTY:
                return None
            at = (at + 2) & mask
        table[at] = _GONE  # what lies behind it must still be found
        self._num_keys -= 1
        return BlockKey(table[at + 1])

    def values(self) -> Iterator[BlockKey]:
        """Yield all keys."""
        for table in self._tables:
            for at in range(0, len(table), 2):
                if table[at] < _GONE:
                    yield BlockKey(table[at + 1])

    def _make_room(self, shard: int) -> None:
        old = np.frombuffer(self._tables[shard], np.uint64).reshape(-1, 2)
        live = old[old[:, 0] < _GONE]
        num_slots = max(_MIN_SLOTS, 1 << (3 * len(live) // 2).bit_length())
        self._tables[shard] = _filled(live, num_slots)
        self._num_free[shard] = _room(num_slots) - len(live)


def _filled(entries: NDArray[np.uint64], num_slots: int) -> array[int]:
    """Return a table of entries, as one `_put` after the other makes it: 0.1 us for each.

    In the order of their first slots, each entry's place is behind the one before it, or its first
    slot. Those that would go over the end begin again at the start.
    """
    first = ((entries[:, 0] >> np.uint64(_SHARD_BITS)) & np.uint64(num_slots - 1)).astype(np.int64)
    order = np.argsort(first, kind="stable")
    number = np.arange(len(entries))
    place = np.maximum.accumulate(first[order] - number) + number
    entries = entries[order]
    slots = np.zeros((num_slots, 2), np.uint64)
    slots[:, 0] = _EMPTY
    inside = place < num_slots
    slots[place[inside]] = entries[inside]
    table = array("Q", slots.tobytes())
    for handle, key in entries[~inside].tolist():
        _put(table, handle, BlockKey(key))
    return table


def _table(num_slots: int) -> array[int]:
    return array("Q", [_EMPTY, 0]) * num_slots


def _room(num_slots: int) -> int:
    """Return how many slots may be taken: beyond, probing gets long, 15 steps for a new name."""
    return num_slots * 13 // 16


def _put(table: array[int], handle: Handle, key: BlockKey) -> None:
    mask = len(table) - 2
    at = (handle >> _SHARD_BITS << 1) & mask
    while table[at] != _EMPTY:
        at = (at + 2) & mask
    table[at], table[at + 1] = handle, key
