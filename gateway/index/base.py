"""What a prefix index is.

A new backend is one file, one row where it is built, and one parameter of the contract suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Protocol

from routing.types import BlockKey, PrefixMatch, ReplicaId, Tier
from routing.value import value


@value
class Prediction:
    """What one request adds to an index when it is sent to a replica, to be taken back if refused.

    Attributes:
        keys: Blocks that the replica was not predicted to hold before.
        until: Monotonic seconds; void from then on.
        prompt: All blocks of the prompt, which `keys` are the end of; empty where the index can do
            without.
    """

    replica: ReplicaId
    keys: Sequence[BlockKey]
    until: float
    prompt: Sequence[BlockKey] = ()


class PrefixIndex(Protocol):
    """Block keys -> the replicas that hold them, by tier.

    Writes return at once: a backend that sends them somewhere queues them, bounded.

    Attributes:
        waits: Whether a look-up can wait for somebody. Then it keeps the deadline that it was made
            with, and answers with what it knows by itself when that is over.
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

    def store(
        self,
        replica: ReplicaId,
        keys: Sequence[BlockKey],
        tier: Tier,
        parents: Sequence[BlockKey | None],
    ) -> None:
        """Record blocks that a replica reported as stored.

        Args:
            replica: Which one.
            keys: Its blocks.
            tier: Where they are.
            parents: By block the one before it in its prompt, None where it begins one; empty for
                blocks that are in another tier of the same replica already.
        """
        ...

    def remove(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Record blocks that a replica reported as removed from one tier."""
        ...

    def clear(self, replica: ReplicaId, keys: Iterable[BlockKey]) -> None:
        """Forget a replica's L0 and L1; `keys` is what it was reported to hold."""
        ...

    def held(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> Set[BlockKey]:
        """Return which of some keys this gateway recorded as stored by a replica in L0 or L1."""
        ...

    def predict(
        self,
        replica: ReplicaId,
        keys: Sequence[BlockKey],
        ttl_s: float,
        max_blocks: int | None,
        num_held: int,
    ) -> Prediction:
        """Record that a prompt was just sent to a replica.

        Args:
            replica: Where it went.
            keys: Its block keys.
            ttl_s: How long that counts, where nothing confirms it.
            max_blocks: What the replica's cache has room for: of more predictions than that, the
                least recently used are void. None where it is not known.
            num_held: Leading blocks that the decision found there: what others need not be told.
        """
        ...

    def withdraw(self, prediction: Prediction) -> None:
        """Take a prediction back, as the request was refused and ran nowhere.

        What other requests predicted in the meantime stays.
        """
        ...

    def num_blocks(self) -> Mapping[Tier, int]:
        """Return how many different blocks each tier knows."""
        ...
