"""Predicted holders: replicas that will probably hold blocks because we sent a prompt there."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from routing.types import BlockKey


class Predictions:
    """(block, holder) pairs that expire, bounded.

    A KV event arrives a prefill later than the decision that caused it; until then a burst of
    prompts with one prefix would scatter over the fleet (docs/adr/0003).

    Args:
        max_blocks: (block, holder) pairs at most, counted once per `add`; beyond it the soonest
            to expire go first.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._until_by_holder_by_key: dict[BlockKey, dict[int, float]] = {}
        self._queue: list[tuple[float, int, int, Sequence[BlockKey]]] = []
        self._num_queued = 0
        self._num_added = 0  # orders queue entries of equal expiry

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, holder: int, keys: Sequence[BlockKey], until: float) -> None:
        """Predict that `holder` has blocks until a monotonic second."""
        for key in keys:
            until_by_holder = self._until_by_holder_by_key.setdefault(key, {})
            until_by_holder[holder] = max(until, until_by_holder.get(holder, until))
        self._num_added += 1
        heapq.heappush(self._queue, (until, self._num_added, holder, keys))
        self._num_queued += len(keys)
        while self._num_queued > self._max_blocks:
            self._drop_soonest()

    def settle(self, holder: int, keys: Iterable[BlockKey]) -> None:
        """Drop predictions that the holder itself has spoken about: it stored, or it removed."""
        for key in keys:
            until_by_holder = self._until_by_holder_by_key.get(key)
            if until_by_holder is not None and until_by_holder.pop(holder, None) is not None:
                self._forget_if_empty(key, until_by_holder)

    def expire(self, now: float) -> None:
        """Drop what was predicted until `now` or earlier."""
        while self._queue and self._queue[0][0] <= now:
            self._drop_soonest()

    def holders(self, key: BlockKey) -> Iterable[int]:
        """Return the predicted holders of a block."""
        return self._until_by_holder_by_key.get(key, ())

    def _drop_soonest(self) -> None:
        until, _, holder, keys = heapq.heappop(self._queue)
        self._num_queued -= len(keys)
        for key in keys:
            until_by_holder = self._until_by_holder_by_key.get(key, {})
            if until_by_holder.get(holder, until + 1) <= until:  # neither settled nor renewed since
                del until_by_holder[holder]
                self._forget_if_empty(key, until_by_holder)

    def _forget_if_empty(self, key: BlockKey, until_by_holder: dict[int, float]) -> None:
        if not until_by_holder:
            del self._until_by_holder_by_key[key]
