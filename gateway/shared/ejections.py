"""Ejections by other gateways.

One gateway's word takes a replica out here until a probe of ours goes well, which is a second at
most: a gateway whose own network is broken ejects everything, and must not take the fleet along.
The word of most others stands until it ends, whatever our probes say. The last ready replica of a
pool stays in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.replicas.registry import Registry
from gateway.replicas.state import ELSEWHERE, ReplicaState
from gateway.shared.word import Word
from routing.types import ReplicaId

# Of the others. One is never most of them: it might be the one that is cut off.
MIN_AGREEING = 2


class Ejections:
    """Tells ours, and takes those of others.

    Args:
        registry: The replicas.
        now: Monotonic seconds.
    """

    def __init__(self, registry: Registry, now: Callable[[], float]) -> None:
        self._registry = registry
        self._now = now
        self._heard: dict[tuple[str, str], int] = {}

    def tell(self) -> Mapping[str, tuple[int, int, str]]:
        """Return replicas that are ejected by our own evidence; what we only heard has no echo."""
        now = self._now()
        return {
            replica.replica_id: (
                int(replica.since * 1000),
                max(0, int((replica.ejected_until - now) * 1000)),
                replica.state_reason,
            )
            for replica in self._registry
            if replica.state is ReplicaState.EJECTED and replica.fault != ELSEWHERE
        }

    def hear(self, words: Mapping[str, tuple[float, Word]]) -> None:
        """Take what the others eject, by gateway."""
        heard: dict[tuple[str, str], int] = {}
        left_ms_by_replica: dict[str, list[int]] = {}
        news: set[str] = set()
        for gateway, (_, word) in words.items():
            for name, (number, left_ms, _) in word.ejected.items():
                heard[gateway, name] = number
                left_ms_by_replica.setdefault(name, []).append(left_ms)
                if self._heard.get((gateway, name)) != number:
                    news.add(name)
        self._heard = heard
        most = max(MIN_AGREEING, len(words) // 2 + 1)
        for name, times_ms in left_ms_by_replica.items():
            agreed = len(times_ms) >= most
            replica = self._registry.get(ReplicaId(name))
            if replica is not None and (agreed or name in news):
                # The first of them that may try again says how long.
                until = self._now() + min(times_ms) / 1000 if agreed else 0.0
                self._registry.failed_elsewhere(replica, until)
