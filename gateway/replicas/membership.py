"""Keeps a model's replicas as its discoveries say: who is new, who is unwanted, who is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.replicas.discovery.base import Discovery, Found, Snapshot
from gateway.replicas.registry import Registry, Replica, ReplicaState
from routing.types import ReplicaId


class Membership:
    """The replicas of one model.

    Args:
        registry: Where they are.
        build: Makes a replica of what a discovery found, under an id.
        on_joined: Told of each new replica, once it is in the registry.
        on_left: Told of each that is gone, once it is out.
    """

    def __init__(
        self,
        registry: Registry,
        build: Callable[[ReplicaId, Found], Replica],
        on_joined: Callable[[Replica], None],
        on_left: Callable[[Replica], None],
    ) -> None:
        self._registry = registry
        self._build = build
        self._on_joined = on_joined
        self._on_left = on_left
        self._snapshot_by_source: dict[int, Snapshot] = {}
        self._replica_by_url: dict[str, Replica] = {}

    async def follow(self, source: int, discovery: Discovery) -> None:
        """Follow one discovery until cancelled; several may feed one model.

        Args:
            source: Tells it from the model's other discoveries.
            discovery: Not yet begun.
        """
        async for snapshot in discovery.snapshots():
            self.apply(source, snapshot)

    def apply(self, source: int, snapshot: Snapshot) -> None:
        """Put one discovery's snapshot in force. The same one again changes nothing."""
        self._snapshot_by_source[source] = snapshot
        found_by_url = self._union()
        for url in self._replica_by_url.keys() - found_by_url.keys():
            replica = self._replica_by_url.pop(url)
            self._registry.remove(replica)
            self._on_left(replica)
        for url, found in found_by_url.items():
            replica = self._replica_by_url.get(url) or self._join(found)
            self._want(replica, wanted=found.ready)

    def _union(self) -> dict[str, Found]:
        """Return what all discoveries found, by address; one that says ready is enough."""
        found_by_url: dict[str, Found] = {}
        for snapshot in self._snapshot_by_source.values():
            for found in sorted(snapshot, key=lambda found: (found.url, found.ready)):
                before = found_by_url.get(found.url)
                if before is None or not before.ready:
                    found_by_url[found.url] = found
        return found_by_url

    def _join(self, found: Found) -> Replica:
        replica = self._build(self._free_id(_names(found)), found)
        self._replica_by_url[found.url] = replica
        self._registry.add(replica)
        self._on_joined(replica)
        return replica

    def _free_id(self, names: Iterable[str]) -> ReplicaId:
        # A pod's name can be taken for a moment by the pod before it, which had another address.
        ids = (ReplicaId(name) for name in names)
        return next(replica_id for replica_id in ids if self._registry.get(replica_id) is None)

    def _want(self, replica: Replica, *, wanted: bool) -> None:
        replica.wanted = wanted
        if not wanted and replica.state is not ReplicaState.STARTING:
            self._registry.set_state(replica, ReplicaState.DRAINING, "platform")


def _names(found: Found) -> Iterable[str]:
    address = found.url.partition("://")[2]
    yield found.name or address
    yield f"{found.name}@{address}"
    number = 2
    while True:
        yield f"{address}#{number}"
        number += 1
