"""What the index has to know about the lives of caches.

Every life of one replica's cache has a number, which is its epoch and the fencing token of whoever
writes: entries of a life that does not count any more are void at once, whoever wrote them and
whenever (docs/adr/0030).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from routing.types import ReplicaId


class Lives(Protocol):
    """Which lives there are, and which of them this gateway may write."""

    @property
    def version(self) -> int:
        """Changes whenever an answer of this object may."""
        ...

    @property
    def has_others(self) -> bool:
        """Whether there are other gateways, who may know what this one does not."""
        ...

    @property
    def high_water(self) -> int:
        """The highest life that is known: one above it is younger than what is known."""
        ...

    def live(self) -> Collection[int]:
        """Return the numbers of all lives that count."""
        ...

    def replica_of(self, life: int) -> ReplicaId | None:
        """Return whose life that is; None where it does not count."""
        ...

    def life_of(self, replica: ReplicaId) -> int | None:
        """Return a replica's life; None where it has none now."""
        ...

    def owned(self, replica: ReplicaId) -> int | None:
        """Return the life of a replica that this gateway may write at this moment."""
        ...

    def is_owned(self, replica: ReplicaId) -> bool:
        """Return whether this gateway follows a replica, so that its own map is the truth."""
        ...

    def renew(self, replica: ReplicaId) -> None:
        """End a replica's life and ask for the next one; it is there some time later."""
        ...
