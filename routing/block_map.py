"""Who holds which block, in which tier. The embedded index, and the model of every other one.

One integer bit mask a block and tier says which replicas hold it, so the longest prefix of all
replicas at once is one walk over the prompt's keys. Each epoch, one life of one replica's cache,
owns one bit: when the cache is cleared the replica gets a new bit, and the old one stops counting
at once; the blocks that still carry it are swept a few at a time by later calls (docs/adr/0004).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

from routing.predictions import Predictions, unset_bit
from routing.types import BlockKey, PrefixMatch, ReplicaId, Tier

# Swept blocks for each block that is stored: garbage shrinks while the map grows, and one call
# never does more than a small multiple of its own work.
_SWEEP_FACTOR = 2

# The mask of a block in the shared pool: all bits, as every replica reaches it.
_EVERY_REPLICA = -1


@dataclass(slots=True)
class _Garbage:
    """What an ended epoch left behind.

    Attributes:
        held: What the replica was reported to hold.
        predicted: What it was predicted to hold.
    """

    bit: int
    held: Iterator[BlockKey]
    predicted: Iterator[BlockKey]


class BlockMap:
    """Block keys -> holders by tier, bounded.

    Args:
        max_blocks: Different blocks a tier at most; further ones are refused and counted.
        max_predicted: Predicted (block, replica) pairs at most; the soonest to expire go first.
    """

    def __init__(self, max_blocks: int, max_predicted: int) -> None:
        self._max_blocks = max_blocks
        self._mask_by_key: Mapping[Tier, dict[BlockKey, int]] = {tier: {} for tier in Tier}
        self._predictions = Predictions(max_predicted)
        self._bit_by_replica: dict[ReplicaId, int] = {}
        self._replica_by_bit: dict[int, ReplicaId] = {}
        self._mask_by_bit: dict[int, int] = {}  # one object for all blocks of one holder
        self._everyone = 0  # the bits of all replicas
        self._free_bits: list[int] = []
        self._garbage: deque[_Garbage] = deque()
        self.num_refused = 0

    def num_blocks(self, tier: Tier) -> int:
        """Return how many different blocks a tier knows, with those that wait for the sweep."""
        return len(self._mask_by_key[tier])

    def store(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Record that a replica holds blocks. What does not fit is refused and counted.

        A block in L2 is held for every replica, whoever stored it.
        """
        mask_by_key = self._mask_by_key[tier]
        bit = self._bit(replica)
        mask = _EVERY_REPLICA if tier is Tier.L2 else self._mask_by_bit[bit]
        for key in keys:
            held = mask_by_key.get(key)
            if held is not None:
                mask_by_key[key] = held | mask
            elif len(mask_by_key) < self._max_blocks:
                mask_by_key[key] = mask
            else:
                self.num_refused += 1
        if tier is Tier.L0:
            self._predictions.settle(bit, keys)
        if self._garbage:
            self.sweep(_SWEEP_FACTOR * len(keys))

    def held(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> Set[BlockKey]:
        """Return which of some keys a replica was reported to hold in L0 or L1.

        Of L2 nobody can say who holds what: the answer is always empty.
        """
        bit = self._bit_by_replica.get(replica)
        if bit is None or tier is Tier.L2:
            return frozenset()
        get, mask = self._mask_by_key[tier].get, self._mask_by_bit[bit]
        return {key for key in keys if get(key, 0) & mask}

    def is_held(self, key: BlockKey) -> bool:
        """Return whether anybody was reported to hold a block, in any tier."""
        return any(key in mask_by_key for mask_by_key in self._mask_by_key.values())

    def in_pool(self, keys: Sequence[BlockKey]) -> Set[BlockKey]:
        """Return which of some keys the shared pool was reported to hold."""
        return self._mask_by_key[Tier.L2].keys() & keys

    def remove(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Record that a replica no longer holds blocks in one tier; other tiers stay as they are.

        A block removed from L2 is gone for every replica.
        """
        bit = self._bit_by_replica.get(replica)
        if tier is Tier.L2:
            for key in keys:
                self._mask_by_key[tier].pop(key, None)
        elif bit is not None:
            for key in keys:
                unset_bit(self._mask_by_key[tier], key, bit)
            if tier is Tier.L0:
                self._predictions.settle(bit, keys)

    def clear(self, replica: ReplicaId, keys: Iterable[BlockKey]) -> None:
        """Forget all that a replica holds in L0 and L1, confirmed or predicted, in O(1).

        Args:
            replica: Whose blocks count no longer, from this call on.
            keys: What it held, for the sweep. The caller knows it, as removals name engine hashes
                that somebody has to translate; the map would need a second copy of it.
        """
        bit = self._bit_by_replica.pop(replica, None)
        if bit is not None:
            del self._replica_by_bit[bit]
            self._everyone &= ~self._mask_by_bit.pop(bit)
            self._garbage.append(_Garbage(bit, iter(keys), self._predictions.forget(bit)))

    def sweep(self, max_blocks: int) -> bool:
        """Remove up to `max_blocks` blocks of cleared replicas; True while some are left."""
        while self._garbage and max_blocks > 0:
            garbage = self._garbage[0]
            swept = 0
            for key in islice(garbage.held, max_blocks):
                swept += 1
                unset_bit(self._mask_by_key[Tier.L0], key, garbage.bit)
                unset_bit(self._mask_by_key[Tier.L1], key, garbage.bit)
            for key in islice(garbage.predicted, max_blocks - swept):
                swept += 1
                self._predictions.unset(garbage.bit, key)
            if swept < max_blocks:
                self._garbage.popleft()
                self._free_bits.append(garbage.bit)
            max_blocks -= swept
        return bool(self._garbage)

    def predict(
        self,
        replica: ReplicaId,
        keys: Sequence[BlockKey],
        until: float,
        max_blocks: int | None = None,
    ) -> int:
        """Record that a replica will probably hold blocks, as a prompt was sent there.

        Args:
            replica: Where the prompt went.
            keys: Keys of the prompt's full blocks.
            until: Monotonic seconds; the prediction is void from then on.
            max_blocks: What the replica's cache has room for; None where that is not known.

        Returns:
            How many leading blocks it was predicted to hold before.
        """
        return self._predictions.add(self._bit(replica), keys, until, max_blocks)

    def withdraw(self, replica: ReplicaId, keys: Iterable[BlockKey], until: float) -> None:
        """Take back what `predict` recorded until that second, but what others renewed since."""
        bit = self._bit_by_replica.get(replica)
        if bit is not None:
            self._predictions.withdraw(bit, keys, until)

    def longest_prefix(
        self, keys: Sequence[BlockKey], block_size: int, now: float
    ) -> dict[ReplicaId, PrefixMatch]:
        """Return the match of every replica that can be served the first block at least.

        Args:
            keys: The prompt's block keys, already capped (`routing.hashing.max_matched_blocks`).
            block_size: Tokens a block.
            now: Monotonic seconds.
        """
        self._predictions.expire(now)
        l0, l1, l2 = (self._mask_by_key[tier].get for tier in Tier)
        everyone, predicted = self._everyone, self._predictions.mask
        confirmed = _run_by_bit(keys, everyone, l0)
        run_l0 = confirmed
        if self._predictions:
            run_l0 = _run_by_bit(keys, everyone, l0, predicted)
        run_l1, run_l2 = run_l0, run_l0
        if self._mask_by_key[Tier.L1]:
            run_l1 = run_l2 = _run_by_bit(keys, everyone, l0, predicted, l1)
        if self._mask_by_key[Tier.L2]:
            run_l2 = _run_by_bit(keys, everyone, l0, predicted, l1, l2)
        return {
            self._replica_by_bit[bit]: PrefixMatch(
                l0_tokens=run_l0.get(bit, 0) * block_size,
                l1_tokens=(run_l1.get(bit, 0) - run_l0.get(bit, 0)) * block_size,
                l2_tokens=(num_blocks - run_l1.get(bit, 0)) * block_size,
                confirmed_tokens=confirmed.get(bit, 0) * block_size,
            )
            for bit, num_blocks in run_l2.items()
        }

    def _bit(self, replica: ReplicaId) -> int:
        """Return the bit of a replica's epoch; a new one where it has none."""
        bit = self._bit_by_replica.get(replica)
        if bit is None:
            bits_in_use = len(self._replica_by_bit) + len(self._garbage)
            bit = self._free_bits.pop() if self._free_bits else bits_in_use
            self._bit_by_replica[replica] = bit
            self._replica_by_bit[bit] = replica
            self._mask_by_bit[bit] = 1 << bit
            self._everyone |= 1 << bit
        return bit


def _run_by_bit(
    keys: Sequence[BlockKey], alive: int, *masks: Callable[[BlockKey, int], int]
) -> dict[int, int]:
    """Return by bit how many leading keys are held, by any of `masks`, in bits of `alive`."""
    run_by_bit: dict[int, int] = {}
    for depth, key in enumerate(keys):
        held = 0
        for mask in masks:
            held |= mask(key, 0)
        ended = alive & ~held
        if ended:
            _note(run_by_bit, ended, depth)
            alive ^= ended
        if not alive:
            return run_by_bit
    _note(run_by_bit, alive, len(keys))
    return run_by_bit


def _note(run_by_bit: dict[int, int], mask: int, depth: int) -> None:
    while mask and depth:  # a run of no blocks is no match
        bit = (mask & -mask).bit_length() - 1
        run_by_bit[bit] = depth
        mask &= mask - 1
