"""The load of all gateways together, where decisions read loads."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.shared.word import Word
from routing.fleet_load import FleetLoad, Snapshot
from routing.load import LoadBook
from routing.types import ReplicaId, ReplicaLoad

# Ten ticks: a gateway that missed so many is gone, or as good as gone to its clients.
LOAD_TTL_S = 1.0


class SharedLoads:
    """Reads as a `LoadBook` does, with the other gateways' load added.

    Args:
        book: This gateway's own.

    Attributes:
        is_busy: Whether any gateway told of something in flight.
    """

    def __init__(self, book: LoadBook) -> None:
        self._book = book
        self._fleet = FleetLoad(LOAD_TTL_S)
        self.is_busy = False
        self._oldest_at = float("inf")
        self._told_some = False

    @property
    def num_gateways(self) -> int:
        """Gateways that decide about the same replicas, this one included."""
        return self._fleet.num_others + 1

    def snapshot(self, replica: ReplicaId, now: float) -> ReplicaLoad:
        """Return one replica's load from all gateways at `now`."""
        return self._fleet.of_fleet(replica, self._book.snapshot(replica, now), now)

    def are_all_known(self, now: float) -> bool:
        """Return whether the load of each gateway that is there counts at `now`."""
        return now - self._oldest_at < LOAD_TTL_S

    def tell(self, now: float) -> Mapping[str, tuple[int, float, int]]:
        """Return this gateway's own load, and remember that it was told."""
        loads = self._book.busy(now)
        self._fleet.note_own(loads, now)
        self._told_some = bool(loads)
        return {
            replica: (int(load.in_flight), round(load.prefill_s, 3), int(load.kv_tokens))
            for replica, load in loads.items()
        }

    def hear(self, words: Mapping[str, tuple[float, Word]], now: float) -> None:
        """Take what each other gateway told, and when it did, monotonic seconds."""
        snapshots = [
            Snapshot(at, {ReplicaId(r): ReplicaLoad(*load) for r, load in word.loads.items()})
            for at, word in words.values()
        ]
        self._fleet.hear(snapshots, now)
        self._oldest_at = min((at for at, _ in words.values()), default=float("inf"))
        self.is_busy = self._told_some or any(snapshot.loads for snapshot in snapshots)
