"""Predicted holders: replicas that will probably hold blocks because we sent a prompt there."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from routing.types import BlockKey


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
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._mask_by_key: dict[BlockKey, int] = {}
        # Of each holder in the order of use, the least recently used first.
        self._until_by_key_by_bit: dict[int, dict[BlockKey, float]] = {}
        self._queue: list[tuple[float, int, int, Sequence[BlockKey]]] = []
        self._num_queued = 0
        self._num_added = 0  # orders queue entries of equal expiry
        self.mask = self._mask_by_key.get
        """Return the mask of a block's predicted holders: `mask(key, 0)`."""

    def __bool__(self) -> bool:
        return bool(self._mask_by_key)

    def num_blocks(self, bit: int) -> int:
        """Return how many blocks one holder is predicted to have."""
        return len(self._until_by_key_by_bit.get(bit, ()))

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
        until_by_key = self._until_by_key_by_bit.setdefault(bit, {})
        num_known = next((n for n, key in enumerate(keys) if key not in until_by_key), len(keys))
        mask_by_key, mask = self._mask_by_key, 1 << bit
        # Backwards, so that the end of the prompt is the first to leave, as in vLLM's free queue.
        for key in reversed(keys):
            before = until_by_key.pop(key, None)
            until_by_key[key] = until if before is None or before < until else before
            if before is None:
                mask_by_key[key] = mask_by_key.get(key, 0) | mask
        if max_blocks is not None:
            while len(until_by_key) > max_blocks:
                self._drop(bit, next(iter(until_by_key)), until_by_key)
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
            for key in keys:
                if key in until_by_key:
                    self._drop(bit, key, until_by_key)

    def withdraw(self, bit: int, keys: Iterable[BlockKey], until: float) -> None:
        """Drop what was predicted until that second exactly, so that nobody renewed it since."""
        until_by_key = self._until_by_key_by_bit.get(bit)
        if until_by_key:
            for key in keys:
                if until_by_key.get(key) == until:
                    self._drop(bit, key, until_by_key)

    def forget(self, bit: int) -> Iterator[BlockKey]:
        """Forget a holder; the keys whose masks `unset` has to clear before its bit is used again.

        Returns:
            Keys, taken one by one: nothing is swept in this call.
        """
        return iter(self._until_by_key_by_bit.pop(bit, {}))

    def unset(self, bit: int, key: BlockKey) -> None:
        """Clear a forgotten holder's bit in the mask of one block."""
        unset_bit(self._mask_by_key, key, bit)

    def expire(self, now: float) -> None:
        """Drop what was predicted until `now` or earlier."""
        while self._queue and self._queue[0][0] <= now:
            self._drop_soonest()

    def _drop_soonest(self) -> None:
        until, _, bit, keys = heapq.heappop(self._queue)
        self._num_queued -= len(keys)
        until_by_key = self._until_by_key_by_bit.get(bit, {})
        for key in keys:
            if until_by_key.get(key, until + 1) <= until:  # neither settled nor renewed since
                self._drop(bit, key, until_by_key)

    def _drop(self, bit: int, key: BlockKey, until_by_key: dict[BlockKey, float]) -> None:
        del until_by_key[key]
        unset_bit(self._mask_by_key, key, bit)


def unset_bit(mask_by_key: dict[BlockKey, int], key: BlockKey, bit: int) -> None:
    """Clear one bit of a block's mask; a block without any bit is forgotten."""
    held = mask_by_key.get(key)
    if held is None:
        return
    held &= ~(1 << bit)
    if held:
        mask_by_key[key] = held
    else:
        del mask_by_key[key]
