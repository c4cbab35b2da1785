"""What a prefix index is.

A new backend is one file, one row where it is built, and one parameter of the contract suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from routing.types import BlockKey, PrefixMatch, ReplicaId, Tier


class PrefixIndex(Protocol):
    """Block keys -> the replicas that hold them, by tier.

    Writes return at once: a backend that sends them somewhere queues them, bounded.

    Attributes:
        waits: Whether a look-up can wait for somebody, and so needs a deadline.
    """

    waits: bool

    async def lookup(
        self, keys_by_block_size: Mapping[int, Sequence[BlockKey]]
    ) -> Mapping[ReplicaId, PrefixMatch]:
        """Return what each replica holds of one prompt; replicas that hold nothing are left out.

        Args:
            keys_by_block_size: The prompt's keys once for each block size in the fleet, capped to
                what a cache can serve (`routing.hashing.max_matched_blocks`).
        """
        ...

    def store(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Record blocks that a replica reported as stored."""
        ...

    def remove(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Record blocks that a replica reported as removed from one tier."""
        ...

    def clear(self, replica: ReplicaId, keys: Iterable[BlockKey]) -> None:
        """Forget a replica's L0 and L1; `keys` is what it was reported to hold."""
        ...

    def predict(self, replica: ReplicaId, keys: Sequence[BlockKey], ttl_s: float) -> None:
        """Record that a prompt was just sent to a replica."""
        ...

    def num_blocks(self) -> Mapping[Tier, int]:
        """Return how many different blocks each tier knows."""
        ...
