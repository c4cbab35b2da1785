"""Whether the gateway wants requests: what /readyz says, and why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.replicas.registry import Registry, ReplicaState

# A discovery that works answers within a second or two. One that does not must not keep from
# serving what the others found.
DISCOVERY_PATIENCE_S = 10.0
# Between two looks at whether replicas have answered: much less than a probe takes to come round.
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Readiness:
    """Tells whether requests can be served.

    Attributes:
        registry: Whose replicas count.
        min_replicas: Ready ones that are needed, of all models together.
        all_synced: Whether every discovery has told once what there is.
        is_stopping: Whether the gateway was told to stop.
        patience_until: Discoveries are not waited for after this, monotonic seconds.
        now: Monotonic seconds.
    """

    registry: Registry
    min_replicas: int
    all_synced: Callable[[], bool]
    is_stopping: Callable[[], bool]
    patience_until: float
    now: Callable[[], float]

    async def settled(self, patience_s: float) -> None:
        """Wait until every discovery and every replica was asked once, but not for ever.

        Args:
            patience_s: Seconds at most: a replica that is down never answers.
        """
        until = self.now() + patience_s
        while self.now() < until and not self.is_stopping():
            told = self.all_synced()
            if told and all(one.state is not ReplicaState.STARTING for one in self.registry):
                return
            await asyncio.sleep(_LOOK_S)

    def why_not(self) -> str | None:
        """Return what speaks against it, in one word; None where the gateway is ready."""
        if self.is_stopping():
            return "stopping"
        if not self.all_synced() and self.now() < self.patience_until:
            return "discovery"
        num_ready = sum(replica.state is ReplicaState.READY for replica in self.registry)
        return None if num_ready >= self.min_replicas else "replicas"
