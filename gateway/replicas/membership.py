"""Keeps a model's replicas as its discoveries say: who is new, who is unwanted, who is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gateway.replicas.discovery.base import Discovery, Found, Snapshot
from gateway.replicas.registry import Registry, Replica
from routing.types import ReplicaId


class Membership:
    """The replicas of one model.

    Args:
        registry: Where they are.
        build: Makes a replica of what a discovery found, under an id.
        on_joined: Told of each new replica, once it is in the registry.
        on_left: Told of each that is gone, once it is out.
        on_refused: Told once of each address found that is a replica of another pool, and whose:
            an engine in two pools would have its load and its cache counted in halves.
    """

    def __init__(
        self,
        registry: Registry,
        build: Callable[[ReplicaId, Found], Replica],
        on_joined: Callable[[Replica], None],
        on_left: Callable[[Replica], None],
        on_refused: Callable[[Found, Replica], None],
    ) -> None:
        self._registry = registry
        self._build = build
        self._on_joined = on_joined
        self._on_left = on_left
        self._on_refused = on_refused
        self._snapshot_by_source: dict[int, Snapshot] = {}
        self._retired: set[int] = set()
        self._successors: set[int] = set()
        self._replicas_by_url: dict[str, list[Replica]] = {}
        self._name_by_url: dict[str, str] = {}
        self._refused_urls: set[str] = set()

    def has_synced(self, source: int) -> bool:
        """Return whether a discovery has told once what there is."""
        return source in self._snapshot_by_source

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
        self._end_retired()
        self._reconcile()

    def retire(self, sources: Iterable[int], successors: Iterable[int]) -> None:
        """Let go of what discoveries found that are no longer followed.

        Not before their successors have told once what there is: a list that moves from one
        discovery to another must not be empty in between.
        """
        self._retired.update(sources)
        self._successors = set(successors)
        self._end_retired()
        self._reconcile()

    def rebuild(self, build: Callable[[ReplicaId, Found], Replica]) -> Iterator[Replica]:
        """Build replicas in another way from now on.

        Args:
            build: As at first.

        Yields:
            What each replica that is there would be, built in the new way.
        """
        self._build = build
        found_by_url = self._union()
        for url, members in self._replicas_by_url.items():
            for member in members:
                yield build(member.replica_id, found_by_url[url])

    def freed(self, url: str) -> None:
        """Take in a replica that another pool has let go, where it was refused because of that."""
        if url in self._refused_urls:
            self._reconcile()

    def learned(self, replica: Replica) -> None:
        """Let each data-parallel rank at an address be a replica, once the address has told them.

        vLLM with `--data-parallel-size` runs several engines behind one address, each with a KV
        cache of its own. How many may change with a restart.
        """
        ranks, url = replica.facts.ranks, replica.url
        wanted = ranks if len(ranks) > 1 else (None,)
        members = self._replicas_by_url.get(url, [])
        if replica not in members or not ranks or [m.rank for m in members] == list(wanted):
            return
        found = self._union()[url]
        kept = {member.rank: member for member in members if member.rank in wanted}
        # New ones before old ones go: meanwhile no other pool may take the address for free.
        self._replicas_by_url[url] = [
            kept[rank] if rank in kept else self._add(found, rank) for rank in wanted
        ]
        for member in members:
            if member.rank not in kept:
                self._remove(member)

    def _reconcile(self) -> None:
        found_by_url = self._union()
        self._refused_urls &= found_by_url.keys()
        # By name too: a pod that gets the address of the one before it is another replica.
        named = {(f.url, f.name) for found in self._snapshot_by_source.values() for f in found}
        for url, name in list(self._name_by_url.items()):
            if (url, name) not in named:
                self._leave(url)
        for url, found in found_by_url.items():
            for member in self._replicas_by_url.get(url) or self._join(found):
                self._registry.want(member, wanted=found.ready)

    def _end_retired(self) -> None:
        if self._retired and self._successors <= self._snapshot_by_source.keys():
            for source in self._retired:
                self._snapshot_by_source.pop(source, None)
            self._retired.clear()

    def _union(self) -> dict[str, Found]:
        """Return what all discoveries found, by address; one that says ready is enough."""
        found_by_url: dict[str, Found] = {}
        for snapshot in self._snapshot_by_source.values():
            for found in sorted(snapshot, key=lambda found: (found.url, found.ready)):
                before = found_by_url.get(found.url)
                if before is None or not before.ready:
                    found_by_url[found.url] = found
        return found_by_url

    def _join(self, found: Found) -> Sequence[Replica]:
        owner = next((other for other in self._registry if other.url == found.url), None)
        if owner is not None:
            if found.url not in self._refused_urls:
                self._refused_urls.add(found.url)
                self._on_refused(found, owner)
            return ()
        self._refused_urls.discard(found.url)
        self._name_by_url[found.url] = found.name
        self._replicas_by_url[found.url] = [self._add(found, None)]
        return self._replicas_by_url[found.url]

    def _add(self, found: Found, rank: int | None) -> Replica:
        replica = self._build(self._free_id(_names(found, rank)), found)
        replica.rank, replica.wanted = rank, found.ready
        self._registry.add(replica)
        self._on_joined(replica)
        return replica

    def _leave(self, url: str) -> None:
        del self._name_by_url[url]
        for replica in self._replicas_by_url.pop(url):
            self._remove(replica)

    def _remove(self, replica: Replica) -> None:
        self._registry.remove(replica)
        self._on_left(replica)

    def _free_id(self, names: Iterable[str]) -> ReplicaId:
        # A pod's name can be taken for a moment by the pod before it, which had another address.
        ids = (ReplicaId(name) for name in names)
        return next(replica_id for replica_id in ids if self._registry.get(replica_id) is None)


def _names(found: Found, rank: int | None) -> Iterable[str]:
    address = found.url.partition("://")[2]
    suffix = "" if rank is None else f"-dp{rank}"
    yield (found.name or address) + suffix
    yield f"{found.name}@{address}{suffix}"
    number = 2
    while True:
        yield f"{address}#{number}{suffix}"
        number += 1
