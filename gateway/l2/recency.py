"""A set of chunks or blocks that forgets: by age, and the least recently used first. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from routing.types import BlockKey


class RecencySet:
    """What a cache of known size, of which nobody reports removals, probably holds.

    Args:
        capacity: Keys at most.
        ttl_s: How long a key stays after it was last stored or refreshed.
    """

    def __init__(self, capacity: int, ttl_s: float) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._stored_at: OrderedDict[BlockKey, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored_at)

    def store(self, keys: Sequence[BlockKey], at: float) -> None:
        """Hold a prompt's keys, given in order, from a moment on.

        The last one becomes the oldest, so that a prompt loses its end first, as caches do it.

        Args:
            keys: In prompt order.
            at: Monotonic seconds; may be ahead. What is there by then, and not too old, keeps the
                moment that it has: it is there now, also if it is just being written again.
        """
        held, oldest = self._stored_at, at - self._ttl_s
        for key in reversed(keys):
            since = held.get(key, at)
            held[key] = min(at, since) if since >= oldest else at
            held.move_to_end(key)
        while len(held) > self._capacity:
            held.popitem(last=False)

    def refresh(self, keys: Iterable[BlockKey], at: float) -> None:
        """Note that keys which are held were found."""
        for key in keys:
            if key in self._stored_at:
                self._stored_at[key] = at

    def remove(self, keys: Iterable[BlockKey]) -> None:
        """Drop keys."""
        for key in keys:
            self._stored_at.pop(key, None)

    def leading_run(self, keys: Sequence[BlockKey], now: float) -> int:
        """Return how many leading keys are held now; those that are too old are dropped."""
        oldest, get = now - self._ttl_s, self._stored_at.get
        for number, key in enumerate(keys):
            at = get(key)
            if at is None or at > now:
                return number
            if at < oldest:
                del self._stored_at[key]
                return number
        return len(keys)

    def clear(self) -> int:
        """Drop everything, and return how much that was."""
        count = len(self._stored_at)
        self._stored_at.clear()
        return count
