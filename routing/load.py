"""The load book: what each replica still has to do for requests that we sent.

Counted by ourselves, at the moment of the decision. Engine gauges lag by seconds, and scraping
them can hang; they are shown, they never gate a decision (docs/adr/0005).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from routing.types import ReplicaId, ReplicaLoad


@dataclass(slots=True, eq=False)
class Lease:
    """One request's claim on one replica. Made by `LoadBook.begin`; ends exactly once."""

    replica: ReplicaId
    prefill_s: float
    kv_tokens: int
    open: bool = True
    prefilling: bool = True
    account: _Account | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Account:
    in_flight: int = 0
    kv_tokens: int = 0
    pending_s: float = 0.0  # prefill of leases that saw no first token yet
    num_prefilling: int = 0
    drain_since: float = 0.0  # when the head of the prefill queue got its turn

    def outstanding_s(self, now: float) -> float:
        if self.num_prefilling == 0:
            return 0.0
        drained_s = now - self.drain_since
        left_s = self.pending_s - drained_s if drained_s > 0.0 else self.pending_s
        return max(0.0, left_s)


_NO_LOAD = ReplicaLoad()


class Loads(Protocol):
    """What the replicas have to do, by whomever it was sent.

    A `LoadBook` of a gateway that is alone; of several, their loads together.
    """

    @property
    def num_gateways(self) -> int:
        """Gateways whose loads these are."""
        ...

    def snapshot(self, replica: ReplicaId, now: float) -> ReplicaLoad:
        """Return one replica's load at `now`."""
        ...


class LoadBook:
    """In-flight requests and outstanding prefill seconds by replica.

    Times are monotonic seconds. A replica that is not known has no load; `forget` drops one, and
    leases that are still open on it then end against their own account, so that a replica that
    comes back under the same id starts from zero.

    Attributes:
        num_gateways: Whose loads these are.
    """

    num_gateways = 1

    def __init__(self) -> None:
        self._account_by_replica: dict[ReplicaId, _Account] = {}

    def begin(self, replica: ReplicaId, prefill_s: float, kv_tokens: int, now: float) -> Lease:
        """Book one request on a replica.

        Args:
            replica: Where it goes.
            prefill_s: Estimated seconds of prefill that it adds, uncached tokens only.
            kv_tokens: Its prompt length in tokens.
            now: Monotonic seconds.
        """
        account = self._account_by_replica.setdefault(replica, _Account())
        if account.num_prefilling == 0:
            account.pending_s, account.drain_since = 0.0, now  # also clears rounding residue
        account.in_flight += 1
        account.kv_tokens += kv_tokens
        account.num_prefilling += 1
        account.pending_s += prefill_s
        return Lease(replica, prefill_s, kv_tokens, account=account)

    def first_token(self, lease: Lease, now: float) -> None:
        """Note that a request's prefill is done; the drain clock starts again for those behind it.

        Later calls, and calls after the end, change nothing.
        """
        if lease.open and lease.prefilling:
            self._end_prefill(lease)
            if lease.account is not None:
                lease.account.drain_since = now

    def end(self, lease: Lease) -> bool:
        """End a lease.

        Returns:
            Whether it was open: a lease ends exactly once, a second call changes nothing.
        """
        if not lease.open:
            return False
        if lease.prefilling:  # it never got its turn, so the drain clock of the others goes on
            self._end_prefill(lease)
        lease.open = False
        account = lease.account
        if account is not None:
            account.in_flight -= 1
            account.kv_tokens -= lease.kv_tokens
        return True

    def busy(self, now: float) -> dict[ReplicaId, ReplicaLoad]:
        """Return the loads of all replicas that have something in flight."""
        return {
            replica: ReplicaLoad(account.in_flight, account.outstanding_s(now), account.kv_tokens)
            for replica, account in self._account_by_replica.items()
            if account.in_flight
        }

    def snapshot(self, replica: ReplicaId, now: float) -> ReplicaLoad:
        """Return one replica's load at `now`."""
        account = self._account_by_replica.get(replica)
        if account is None or account.in_flight == 0:
            return _NO_LOAD  # the same for all that are idle: most of a large fleet
        return ReplicaLoad(account.in_flight, account.outstanding_s(now), account.kv_tokens)

    def forget(self, replica: ReplicaId) -> None:
        """Drop a replica that is gone."""
        self._account_by_replica.pop(replica, None)

    def total_in_flight(self) -> int:
        """Return the requests in flight over all known replicas."""
        return sum(account.in_flight for account in self._account_by_replica.values())

    def _end_prefill(self, lease: Lease) -> None:
        lease.prefilling = False
        account = lease.account
        if account is not None:
            account.num_prefilling -= 1
            account.pending_s = max(0.0, account.pending_s - lease.prefill_s)
