"""Where in its prompt's chain each block is that this gateway has to write about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gateway.index.segments import begins_segment
from routing.types import BlockKey


class Chains:
    """Block keys -> the anchor of their segment, and the block before them in it.

    A removal names blocks only, and an entry is found by its segment. Parents are kept so that all
    can be written again, to a database that was wiped.

    Args:
        is_held: Whether somebody is reported to hold a block.
    """

    def __init__(self, is_held: Callable[[BlockKey], bool]) -> None:
        self._is_held = is_held
        self._anchor_by_key: dict[BlockKey, BlockKey] = {}
        self._parent_by_key: dict[BlockKey, BlockKey | None] = {}
        self._num_by_anchor: dict[BlockKey, int] = {}
        self._swept: list[BlockKey] = []

    def __len__(self) -> int:
        return len(self._anchor_by_key)

    @property
    def num_segments(self) -> int:
        """How many segments the blocks are in."""
        return len(self._num_by_anchor)

    def add(self, keys: Sequence[BlockKey], parents: Sequence[BlockKey | None]) -> int:
        """Learn of blocks; return how many have no place, as their parents are not known.

        Args:
            keys: The blocks.
            parents: The block before each, None where it begins a prompt; empty where all of them
                should be known already.
        """
        anchor_by_key, num_unplaced = self._anchor_by_key, 0
        for key, parent in zip(keys, parents, strict=False):
            if key in anchor_by_key:
                continue
            if parent is None or begins_segment(key):
                anchor, inside = key, None
            else:
                found = anchor_by_key.get(parent)
                if found is None:
                    num_unplaced += 1
                    continue
                anchor, inside = found, parent
            anchor_by_key[key] = anchor
            self._parent_by_key[key] = inside
            self._num_by_anchor[anchor] = self._num_by_anchor.get(anchor, 0) + 1
        return num_unplaced

    def parts(
        self, keys: Iterable[BlockKey]
    ) -> Iterator[tuple[BlockKey, BlockKey | None, list[BlockKey]]]:
        """Yield blocks by segment and in a row: the anchor, the parent of the first, the blocks.

        Blocks whose place is not known are left out.
        """
        anchor_by_key, parent_by_key = self._anchor_by_key, self._parent_by_key
        anchor: BlockKey | None = None
        first_parent: BlockKey | None = None
        part: list[BlockKey] = []
        for key in keys:
            own = anchor_by_key.get(key)
            if own is None:
                continue
            parent = parent_by_key[key]
            if part and own == anchor and parent == part[-1]:
                part.append(key)
                continue
            if part and anchor is not None:
                yield anchor, first_parent, part
            anchor, first_parent, part = own, parent, [key]
        if part and anchor is not None:
            yield anchor, first_parent, part

    def by_anchor(self, keys: Iterable[BlockKey]) -> dict[BlockKey, list[BlockKey]]:
        """Return blocks by segment; those whose place is not known are left out."""
        found: dict[BlockKey, list[BlockKey]] = {}
        for key in keys:
            anchor = self._anchor_by_key.get(key)
            if anchor is not None:
                found.setdefault(anchor, []).append(key)
        return found

    def drop(self, keys: Iterable[BlockKey]) -> None:
        """Forget those of some blocks that nobody holds any more."""
        for key in keys:
            anchor = self._anchor_by_key.get(key)
            if anchor is None or self._is_held(key):
                continue
            del self._anchor_by_key[key], self._parent_by_key[key]
            left = self._num_by_anchor[anchor] - 1
            if left:
                self._num_by_anchor[anchor] = left
            else:
                del self._num_by_anchor[anchor]

    def sweeping(self, keys: Iterable[BlockKey]) -> Iterator[BlockKey]:
        """Yield blocks to whoever sweeps them out of the map, and note them for `drop_swept`."""
        for key in keys:
            self._swept.append(key)
            yield key

    def drop_swept(self) -> None:
        """Forget those that were swept since the last call and that nobody holds any more."""
        if self._swept:
            self.drop(self._swept)
            self._swept.clear()

    def keys(self) -> list[BlockKey]:
        """Return all blocks, mostly in the order in which they follow each other."""
        return list(self._anchor_by_key)

    def anchors(self) -> list[BlockKey]:
        """Return the anchors of all segments."""
        return list(self._num_by_anchor)
