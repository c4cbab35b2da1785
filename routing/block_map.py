"""Who holds which block, in which tier. The embedded index, and the model of every other one.

One integer bit mask a block and tier says which replicas hold it, so the longest prefix of all
replicas at once is one walk over the prompt's keys. Each epoch, one life of one replica's cache,
owns one bit: when the cache is cleared the replica gets a new bit, and the old one stops counting
at once; the blocks that still carry it are swept a few at a time by later calls (docs/adr/0004).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice, tee
from operator import or_

from routing.holders import Holders
from routing.predictions import Predictions
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
        self._holders: Mapping[Tier, Holders] = {tier: Holders() for tier in Tier}
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
        return len(self._holders[tier])

    def store(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Record that a replica holds blocks. What does not fit is refused and counted.

        A block in L2 is held for every replica, whoever stored it.
        """
        bit = self._bit(replica)
        mask = _EVERY_REPLICA if tier is Tier.L2 else self._mask_by_bit[bit]
        self.num_refused += self._holders[tier].add(keys, mask, self._max_blocks)
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
        return self._holders[tier].among(keys, self._mask_by_bit[bit])

    def is_held(self, key: BlockKey) -> bool:
        """Return whether anybody was reported to hold a block, in any tier."""
        return any(holders.of(key) for holders in self._holders.values())

    def in_pool(self, keys: Sequence[BlockKey]) -> Set[BlockKey]:
        """Return which of some keys the shared pool was reported to hold."""
        return self._holders[Tier.L2].among(keys, _EVERY_REPLICA)

    def remove(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Record that a replica no longer holds blocks in one tier; other tiers stay as they are.

        A block removed from L2 is gone for every replica.
        """
        bit = self._bit_by_replica.get(replica)
        if tier is Tier.L2:
            self._holders[tier].discard(keys, _EVERY_REPLICA)
        elif bit is not None:
            self._holders[tier].discard(keys, self._mask_by_bit[bit])
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
            held = list(islice(garbage.held, max_blocks))
            for tier in (Tier.L0, Tier.L1):
                self._holders[tier].discard(held, 1 << garbage.bit)
            predicted = list(islice(garbage.predicted, max_blocks - len(held)))
            self._predictions.unset(garbage.bit, predicted)
            swept = len(held) + len(predicted)
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

    def num_predicted(self, replica: ReplicaId, keys: Sequence[BlockKey]) -> int:
        """Return how many leading blocks of a prompt a replica is predicted to hold."""
        bit = self._bit_by_replica.get(replica)
        return 0 if bit is None else self._predictions.num_leading(bit, keys)

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
        confirmed, run_l0, run_l1, run_l2 = self._runs(keys)
        return {
            self._replica_by_bit[bit]: PrefixMatch(
                l0_tokens=run_l0.get(bit, 0) * block_size,
                l1_tokens=(run_l1.get(bit, 0) - run_l0.get(bit, 0)) * block_size,
                l2_tokens=(num_blocks - run_l1.get(bit, 0)) * block_size,
                confirmed_tokens=confirmed.get(bit, 0) * block_size,
            )
            for bit, num_blocks in run_l2.items()
        }

    def _runs(self, keys: Sequence[BlockKey]) -> list[Mapping[int, int]]:
        """Return by bit how many leading blocks are there: confirmed, in L0, to L1, to L2."""
        held = self._holders[Tier.L0].along(keys)
        further = (None, self._predictions.holders, self._holders[Tier.L1], self._holders[Tier.L2])
        runs: list[Mapping[int, int]] = []
        for holders in further:
            if holders:
                held = map(or_, held, holders.along(keys))
            elif runs:
                runs.append(runs[-1])
                continue
            held, seen = tee(held)  # each block is looked up once
            runs.append(_run_by_bit(seen, len(keys), self._everyone))
        return runs

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


def _run_by_bit(held: Iterable[int], num_keys: int, alive: int) -> dict[int, int]:
    """Return by bit how many leading keys are held, of the bits of `alive`.

    Args:
        held: The mask of each key's holders.
        num_keys: How many keys these are.
        alive: The bits that are asked for.
    """
    run_by_bit: dict[int, int] = {}
    if not alive:
        return run_by_bit  # nobody is known here, as where all that is known is in Redis
    for depth, mask in enumerate(held):
        if mask & alive != alive:
            _note(run_by_bit, alive & ~mask, depth)
            alive &= mask
            if not alive:
                return run_by_bit
    _note(run_by_bit, alive, num_keys)
    return run_by_bit


def _note(run_by_bit: dict[int, int], mask: int, depth: int) -> None:
    while mask and depth:  # a run of no blocks is no match
        bit = (mask & -mask).bit_length() - 1
        run_by_bit[bit] = depth
        mask &= mask - 1
