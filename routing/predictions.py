"""Predicted holders: replicas that will probably hold blocks because we sent a prompt there."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

from routing.holders import Holders
from routing.types import BlockKey

# Of a full cache's predictions one in so many leaves beside those that have to: to find the least
# recently used, a dictionary passes all that were taken off its front, 60 us of 25,600 blocks.
_LEAVING_PART = 64
# Dropped at a time where more than that is void, 1 ms; the rest goes with the calls that follow.
_EXPIRED_AT_ONCE = 4096


class Predictions:
    """(block, holder) pairs that expire, bounded over all holders and for each of them.

    A KV event arrives a prefill later than the decision that caused it; until then a burst of
    prompts with one prefix would scatter over the fleet (docs/adr/0003). Where no events come,
    predictions are all that is known of a cache, and so they leave as its blocks do: the least
    recently used first, of one prompt the end first, as soon as there are more than the cache has
    room for (docs/adr/0026).

    Holders are bits: which of them are predicted to hold a block is one mask.

    Args:
        max_blocks: (block, holder) pairs at most, counted once per `add`; beyond it the soonest
            to expire go first.

    Attributes:
        holders: The predicted holders of each block.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self.holders = Holders()
        # Of each holder in the order of use, the least recently used first.
        self._until_by_key_by_bit: dict[int, dict[BlockKey, float]] = {}
        self._queue: list[tuple[float, int, int, Sequence[BlockKey]]] = []
        self._num_queued = 0
        self._num_added = 0  # orders queue entries of equal expiry

    def num_blocks(self, bit: int) -> int:
        """Return how many blocks one holder is predicted to have."""
        return len(self._until_by_key_by_bit.get(bit, ()))

    def num_leading(self, bit: int, keys: Sequence[BlockKey]) -> int:
        """Return how many leading blocks of a prompt a holder is predicted to have."""
        known = self._until_by_key_by_bit.get(bit, {})
        return len(list(takewhile(known.__contains__, keys)))

    def add(
        self, bit: int, keys: Sequence[BlockKey], until: float, max_blocks: int | None = None
    ) -> int:
        """Predict that a holder has blocks until a monotonic second.

        Args:
            bit: The holder.
            keys: Of one prompt, from its beginning.
            until: Monotonic seconds; earlier than a prediction that is there changes nothing.
            max_blocks: What its cache has room for; None where that is not known.

        Returns:
            How many leading blocks it was predicted to have before.
        """
        num_known = self.num_leading(bit, keys)
        until_by_key = self._until_by_key_by_bit.setdefault(bit, {})
        fresh = []
        # Backwards, so that the end of the prompt is the first to leave, as in vLLM's free queue.
        for key in reversed(keys):
            before = until_by_key.pop(key, None)
            until_by_key[key] = until if before is None or before < until else before
            if before is None:
                fresh.append(key)
        self.holders.add(fresh, 1 << bit)
        if max_blocks is not None and len(until_by_key) > max_blocks:
            num_leaving = len(until_by_key) - max_blocks + max_blocks // _LEAVING_PART
            self._drop(bit, list(islice(until_by_key, num_leaving)))
        self._num_added += 1
        heapq.heappush(self._queue, (until, self._num_added, bit, keys))
        self._num_queued += len(keys)
        while self._num_queued > self._max_blocks:
            self._drop_soonest()
        return num_known

    def settle(self, bit: int, keys: Iterable[BlockKey]) -> None:
        """Drop predictions that the holder itself has spoken about: it stored, or it removed."""
        until_by_key = self._until_by_key_by_bit.get(bit)
        if until_by_key:
            self._drop(bit, [key for key in keys if key in until_by_key])

    def withdraw(self, bit: int, keys: Iterable[BlockKey], until: float) -> None:
        """Drop what was predicted until that second exactly, so that nobody renewed it since."""
        until_by_key = self._until_by_key_by_bit.get(bit)
        if until_by_key:
            self._drop(bit, [key for key in keys if until_by_key.get(key) == until])

    def forget(self, bit: int) -> Iterator[BlockKey]:
        """Forget a holder; the keys whose masks `unset` has to clear before its bit is used again.

        Returns:
            Keys, taken one by one: nothing is swept in this call.
        """
        return iter(self._until_by_key_by_bit.pop(bit, {}))

    def unset(self, bit: int, keys: Iterable[BlockKey]) -> None:
        """Clear a holder's bit in the masks of blocks that it is not predicted to have any more."""
        self.holders.discard(keys, 1 << bit)

    def expire(self, now: float) -> None:
        """Drop what was predicted until `now` or earlier; of very much, a part."""
        num_before = self._num_queued
        while self._queue and self._queue[0][0] <= now:
            if num_before - self._num_queued >= _EXPIRED_AT_ONCE:
                break
            self._drop_soonest()

    def _drop_soonest(self) -> None:
        until, _, bit, keys = heapq.heappop(self._queue)
        self._num_queued -= len(keys)
        until_by_key = self._until_by_key_by_bit.get(bit)
        if until_by_key:  # those that were neither settled nor renewed since
            late = until + 1
            self._drop(bit, [key for key in keys if until_by_key.get(key, late) <= until])

    def _drop(self, bit: int, keys: Sequence[BlockKey]) -> None:
        until_by_key = self._until_by_key_by_bit[bit]
        for key in keys:
            until_by_key.pop(key, None)  # a prompt may name a block twice
        self.unset(bit, keys)
