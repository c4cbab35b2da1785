"""The lives of caches as the index sees them: which entries count, and what may be written."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gateway.shared.ownership import LEASE_S, Ownership
from gateway.shared.table import Table
from routing.types import ReplicaId

# By our own clock we give up before the others may take over: clocks drift, and a write takes time.
LEASE_MARGIN_S = 0.5
# By so much the server's clock, or that of the server that took over, may differ from one tick to
# the next. Ahead, what it kept may have come to its end before its time; back, predictions that
# were over may count again. Far above what a tick may be late by, and below any sensible time to
# live in the index.
MAX_CLOCK_STEP_S = 10.0


class SharedLives:
    """A `gateway.index.lives.Lives` over the exchange.

    Args:
        ownership: Of this gateway.
        now: Monotonic seconds.

    Attributes:
        wake: Called when a new life was asked for: the next tick should not wait.
    """

    def __init__(self, ownership: Ownership, now: Callable[[], float]) -> None:
        self._ownership = ownership
        self._now = now
        self._replica_by_life: dict[int, ReplicaId] = {}
        self._table: Table = ownership.table
        self._lease_until = 0.0
        self._had_others = False
        self._server_ahead_s: float | None = None
        self.wake: Callable[[], None] = _nobody
        self.version = 0
        """Changes whenever an answer of this object may."""

    @property
    def high_water(self) -> int:
        """The highest life number that is known; later ones may be alive."""
        return self._ownership.high_water

    @property
    def has_others(self) -> bool:
        """Whether other gateways are there, whose predictions only the shared index has."""
        return len(self._ownership.live) > 1

    def live(self) -> Collection[int]:
        """Return the numbers of all present lives."""
        return self._replica_by_life.keys()

    def replica_of(self, life: int) -> ReplicaId | None:
        """Return whose present life that is; None: entries of it do not count."""
        replica = self._replica_by_life.get(life)
        return None if replica is None or self._ownership.is_ending(replica) else replica

    def life_of(self, replica: ReplicaId) -> int | None:
        """Return the number of a replica's present life."""
        return None if self._ownership.is_ending(replica) else self._ownership.life(replica)

    def owned(self, replica: ReplicaId) -> int | None:
        """Return the life that this gateway may write now.

        None where the replica is not its own, where its lease is over by its own clock (it was
        paused, or the exchange is down), and until a new life that was asked for is there.
        """
        row = self._ownership.row(replica)
        if row is None or row.owner != self._ownership.me or self._ownership.is_ending(replica):
            return None
        return row.life if self._now() < self._lease_until else None

    def is_owned(self, replica: ReplicaId) -> bool:
        """Return whether this gateway follows the replica, so that its own index is the truth."""
        return self._ownership.follows(replica)

    def renew(self, replica: ReplicaId) -> None:
        """End a replica's life, as its cache is empty or unknown, and ask for the next one."""
        if self._ownership.begin_anew(replica):
            self._changed()
            self.wake()

    def hear_clock(self, server_ahead_s: float) -> None:
        """Begin anew all that is ours where the server's clock jumped.

        Args:
            server_ahead_s: Its clock less ours.
        """
        before, self._server_ahead_s = self._server_ahead_s, server_ahead_s
        if before is not None and abs(server_ahead_s - before) > MAX_CLOCK_STEP_S:
            for replica in self._ownership.held:
                self.renew(replica)

    def heard(self, asked_at: float) -> None:
        """Note that a tick went well; `Ownership.hear` was called.

        Args:
            asked_at: When it was begun, monotonic seconds: the lease is counted from there.
        """
        was_over = self._now() >= self._lease_until
        self._lease_until = asked_at + LEASE_S - LEASE_MARGIN_S
        table, had_others = self._ownership.table, self._had_others
        self._had_others = self.has_others
        if table is not self._table or was_over or had_others is not self._had_others:
            self._table = table
            rows = table.row_by_replica.items()
            self._replica_by_life = {row.life: replica for replica, row in rows}
            self._changed()

    def alone(self) -> None:
        """Note that there is nobody to exchange with: this gateway follows all replicas."""
        self._ownership.is_alone = True
        self._changed()

    def _changed(self) -> None:
        self.version += 1


def _nobody() -> None:
    """Nobody to wake before the exchange runs."""
