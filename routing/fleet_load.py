"""Other gateways' load, which is known late, guessed from our own, which is known at once.

Several gateways in front of the same replicas see each other's loads only as often as they exchange
them, and a burst is over in less. But what one of them gets from its balancer the others get too:
so between two exchanges every other gateway is taken to have done what we did ourselves since. Each
exchange puts that right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from routing.types import ReplicaId, ReplicaLoad
from routing.value import value

LoadByReplica = Mapping[ReplicaId, ReplicaLoad]

_IDLE = ReplicaLoad()


@value
class Snapshot:
    """What another gateway had at its replicas at one moment.

    Attributes:
        at: That moment by our own clock, monotonic seconds.
        loads: Of the replicas where it had something in flight.
    """

    at: float
    loads: LoadByReplica


class FleetLoad:
    """Adds the other gateways' load to our own.

    others(r) = sum of their snapshots(r) + their number * (own(r) now - own(r) at the snapshot)

    Args:
        ttl_s: A snapshot counts for so long; one gateway's load is gone when it tells none. Where
            we hear nobody (the exchange is down) all snapshots end so, and others(r) is their
            number * own(r): whoever was there is taken to be there, until we hear again.

    Attributes:
        num_others: Other gateways that are taken to be there.

    Source:
        Mirror extrapolation, of the rule study in docs/adr/0032.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._own: deque[Snapshot] = deque()
        self._base: dict[ReplicaId, ReplicaLoad] = {}
        self._base_until = 0.0
        self.num_others = 0

    def note_own(self, loads: LoadByReplica, now: float) -> None:
        """Remember our own load of this moment: what snapshots of others are compared with."""
        self._own.append(Snapshot(now, loads))
        # One older than any snapshot that counts is enough.
        while len(self._own) > 1 and self._own[1].at <= now - self._ttl_s:
            self._own.popleft()

    def hear(self, others: Iterable[Snapshot], now: float) -> None:
        """Take what all the others tell, in the place of what they told before.

        Args:
            others: One of each other gateway; those older than the TTL do not count.
            now: Monotonic seconds.
        """
        fresh = [snapshot for snapshot in others if now - snapshot.at < self._ttl_s]
        self.num_others = len(fresh)
        self._base_until = now + self._ttl_s
        sums: dict[ReplicaId, ReplicaLoad] = {}
        for snapshot in fresh:
            _add(sums, snapshot.loads, 1)
        # Most are of the same moment, and ours of it has to be looked at once only.
        for at, number in Counter(self._nearest(one.at) for one in fresh).items():
            _add(sums, self._own[at].loads, -number)
        self._base = sums

    def of_fleet(self, replica: ReplicaId, own: ReplicaLoad, now: float) -> ReplicaLoad:
        """Return a replica's load from all gateways.

        Args:
            replica: Which.
            own: What this gateway has there now.
            now: Monotonic seconds.
        """
        number = self.num_others
        if not number:
            return own
        base = self._base.get(replica, _IDLE) if now < self._base_until else _IDLE
        if base is _IDLE and not own.in_flight:
            return own
        return ReplicaLoad(
            own.in_flight + max(0, base.in_flight + number * own.in_flight),
            own.prefill_s + max(0.0, base.prefill_s + number * own.prefill_s),
            own.kv_tokens + max(0, base.kv_tokens + number * own.kv_tokens),
        )

    def _nearest(self, at: float) -> int:
        """Return the place of our own load nearest to a moment."""
        if not self._own:
            self.note_own({}, at)  # we told nothing yet: there was none
        after = bisect_left(self._own, at, key=lambda own: own.at)
        around = range(max(0, after - 1), min(after + 1, len(self._own)))
        return min(around, key=lambda place: abs(self._own[place].at - at))


def _add(sums: dict[ReplicaId, ReplicaLoad], loads: LoadByReplica, times: int) -> None:
    get = sums.get
    for replica, load in loads.items():
        to = get(replica, _IDLE)
        sums[replica] = ReplicaLoad(
            to.in_flight + times * load.in_flight,
            to.prefill_s + times * load.prefill_s,
            to.kv_tokens + times * load.kv_tokens,
        )
