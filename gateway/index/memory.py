"""The embedded index: one gateway's own view, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from gateway.index.base import Prediction
from gateway.index.steps import Steps
from routing.block_map import BlockMap
from routing.types import BlockKey, PrefixMatch, ReplicaId, Tier


class MemoryIndex:
    """A `PrefixIndex` over `routing.block_map.BlockMap`.

    Args:
        blocks: The map, empty.
        now: Monotonic seconds.
    """

    waits = False

    def __init__(self, blocks: BlockMap, now: Callable[[], float]) -> None:
        self._blocks = blocks
        self._steps = Steps(blocks)
        self._now = now

    async def lookup(
        self, keys_by_block_size: Mapping[int, Sequence[BlockKey]]
    ) -> Mapping[ReplicaId, PrefixMatch]:
        """Walk the prompt's keys once for each block size."""
        return await self._steps.lookup(keys_by_block_size, self._now())

    def store(
        self,
        replica: ReplicaId,
        keys: Sequence[BlockKey],
        tier: Tier,
        parents: Sequence[BlockKey | None] = (),  # noqa: ARG002 - a key says all about its prefix
    ) -> None:
        """Record stored blocks."""
        self._blocks.store(replica, keys, tier)

    def remove(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Record removed blocks."""
        self._blocks.remove(replica, keys, tier)

    def clear(self, replica: ReplicaId, keys: Iterable[BlockKey]) -> None:
        """Forget a replica, in O(1)."""
        self._steps.forget(replica)
        self._blocks.clear(replica, keys)

    def held(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> Set[BlockKey]:
        """Return which keys a replica was reported to hold."""
        return self._blocks.held(replica, keys, tier)

    def predict(
        self,
        replica: ReplicaId,
        keys: Sequence[BlockKey],
        ttl_s: float,
        max_blocks: int | None,
        num_held: int = 0,  # noqa: ARG002 - there is nobody to tell
    ) -> Prediction:
        """Record a prediction."""
        until = self._now() + ttl_s
        num_known = self._steps.predict(replica, keys, until, max_blocks)
        return Prediction(replica, keys[num_known:], until)

    def withdraw(self, prediction: Prediction) -> None:
        """Take a prediction back."""
        self._steps.withdraw(prediction.replica, prediction.keys, prediction.until)

    def num_blocks(self) -> Mapping[Tier, int]:
        """Return how many different blocks each tier knows."""
        return {tier: self._blocks.num_blocks(tier) for tier in Tier}
