"""Blocks whose parent is not known: kept aside for a while, as it may still come. Pure.

An orphan's prefix could be anybody's, so it is never taken for the start of a prompt
(docs/adr/0025).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.kvevents.decode import BlocksStored, Handle
from routing.types import Tier

# Per replica: two prompts of 32,000 tokens in blocks of 16.
MAX_ORPHAN_BLOCKS = 4096
# A parent that comes at all comes within the same prefill, or as a hit that the engine reports with
# the next request of the conversation.
ORPHAN_PATIENCE_S = 60.0


@dataclass(slots=True, eq=False)
class Orphan:
    """A stored run of blocks that waits for its parent.

    Attributes:
        until: Monotonic seconds; it is forgotten then.
        gone: Those of its blocks that were removed while it waited.
        waits: False once it was adopted or forgotten.
    """

    event: BlocksStored
    tier: Tier
    until: float
    gone: set[Handle] = field(default_factory=set)
    waits: bool = True


class Orphans:
    """The orphans of one replica, bounded in number and in time.

    Attributes:
        num_blocks: Blocks that wait.
    """

    def __init__(self) -> None:
        self.num_blocks = 0
        self._queue: deque[Orphan] = deque()
        self._by_parent: dict[Handle, list[Orphan]] = {}
        self._by_handle: dict[Handle, Orphan] = {}

    def __bool__(self) -> bool:
        return self.num_blocks > 0

    def put(self, event: BlocksStored, tier: Tier, now: float) -> None:
        """Keep a run of blocks aside; the oldest ones make room for it.

        Args:
            event: With a parent.
            tier: Where the blocks are.
            now: Monotonic seconds.
        """
        if event.parent is None or len(event.hashes) > MAX_ORPHAN_BLOCKS:
            return
        while self._queue and (
            self._queue[0].until <= now
            or not self._queue[0].waits
            or self.num_blocks + len(event.hashes) > MAX_ORPHAN_BLOCKS
        ):
            self._forget(self._queue.popleft())
        orphan = Orphan(event, tier, now + ORPHAN_PATIENCE_S)
        self._queue.append(orphan)
        self._by_parent.setdefault(event.parent, []).append(orphan)
        self._by_handle.update(dict.fromkeys(event.hashes, orphan))
        self.num_blocks += len(event.hashes)

    def take(self, parents: Iterable[Handle], now: float) -> list[Orphan]:
        """Return those that waited for one of these blocks; they wait no more."""
        found = []
        for parent in parents:
            for orphan in list(self._by_parent.get(parent, ())):
                self._forget(orphan)
                if orphan.until > now:
                    found.append(orphan)
        return found

    def remove(self, handle: Handle) -> None:
        """Note that the engine removed a block, which may be one of these."""
        orphan = self._by_handle.get(handle)
        if orphan is not None:
            orphan.gone.add(handle)

    def clear(self) -> None:
        """Forget all."""
        self.num_blocks = 0
        self._queue.clear()
        self._by_parent.clear()
        self._by_handle.clear()

    def _forget(self, orphan: Orphan) -> None:
        if not orphan.waits:
            return
        orphan.waits = False
        event = orphan.event
        self.num_blocks -= len(event.hashes)
        if event.parent is not None:
            siblings = self._by_parent[event.parent]
            siblings.remove(orphan)
            if not siblings:
                del self._by_parent[event.parent]
        for handle in event.hashes:
            if self._by_handle.get(handle) is orphan:
                del self._by_handle[handle]
