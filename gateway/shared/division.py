"""Whose events this gateway follows, and what it has to say about the replicas of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gateway.replicas.replica import Told
from gateway.shared.ownership import Ownership
from gateway.shared.word import Word
from routing.types import ReplicaId

# Stands in a word for the same process, whose own word contradicts what it should hold.
_SAME_PROCESS = 0.0


class SharedDivision:
    """A `gateway.kvevents.follow.Division` over the exchange.

    Args:
        ownership: Of this gateway.

    Attributes:
        wake: Called when there is a doubt to tell.
    """

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._doubts: dict[ReplicaId, tuple[int, float]] = {}
        self._heard: set[tuple[ReplicaId, int, float]] = set()
        self.wake: Callable[[], None] = _nobody

    def is_owned(self, replica: ReplicaId) -> bool:
        """Return whether this gateway follows it."""
        return self._ownership.follows(replica)

    def told(self, replica: ReplicaId) -> Told | None:
        """Return what its owner says of its events; None where that is us, or nobody is there."""
        return None if self._ownership.is_alone else self._ownership.told(replica)

    def doubt(self, replica: ReplicaId, started_at: float | None) -> None:
        """Tell a replica's owner that its present life should end."""
        row = self._ownership.row(replica)
        if row is not None and not self._ownership.follows(replica):
            self._doubts[replica] = (row.life, started_at or _SAME_PROCESS)
            self.wake()

    def tell(self) -> dict[str, tuple[int, float]]:
        """Return our doubts, until the lives that they are about have ended."""
        life = self._ownership.life
        self._doubts = {r: doubt for r, doubt in self._doubts.items() if life(r) == doubt[0]}
        return {str(replica): doubt for replica, doubt in self._doubts.items()}

    def hear(
        self, words: Mapping[str, tuple[float, Word]]
    ) -> Iterator[tuple[ReplicaId, float | None]]:
        """Yield new doubts of others in present lives of our replicas, with the process's start."""
        heard: set[tuple[ReplicaId, int, float]] = set()
        for _, word in words.values():
            for name, (life, started_at) in word.doubts.items():
                replica = ReplicaId(name)
                row = self._ownership.row(replica)
                is_ours = row is not None and row.owner == self._ownership.me
                if is_ours and row is not None and row.life == life:
                    heard.add((replica, life, started_at))
        for doubt in heard - self._heard:
            yield doubt[0], doubt[2] if doubt[2] != _SAME_PROCESS else None
        self._heard = heard


def _nobody() -> None:
    """Nobody to wake before the exchange runs."""
