"""Keeps one KV event stream for each replica that publishes, and feeds the index from it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.index.base import PrefixIndex
from gateway.kvevents.subscriber import Context, KvEventStream, Source
from gateway.kvevents.translate import Change, Cleared, Removed, Stored, Translator
from gateway.replicas.registry import Replica
from routing.types import ReplicaId


@dataclass(frozen=True, slots=True)
class _Followed:
    source: Source
    stream: KvEventStream
    task: asyncio.Task[None]


class Followers:
    """The KV event streams of all replicas.

    Args:
        index: Takes the changes.
        context: Of all sockets.
        max_blocks: Blocks that one replica's stream remembers at most.
    """

    def __init__(self, index: PrefixIndex, context: Context, max_blocks: int) -> None:
        self._index = index
        self._context = context
        self._max_blocks = max_blocks
        self._followed_by_replica: dict[ReplicaId, _Followed] = {}

    @property
    def streams(self) -> Mapping[ReplicaId, KvEventStream]:
        """Every stream by its replica, for metrics."""
        return {replica: f.stream for replica, f in self._followed_by_replica.items()}

    def follow(self, replica: Replica, *, restarted: bool) -> None:
        """Follow a replica where it says it publishes; the same source again changes nothing.

        Args:
            replica: Whose facts were just read.
            restarted: Its engine process is a new one, so what it held is gone.
        """
        source = replica.kv_events
        followed = self._followed_by_replica.get(replica.replica_id)
        if followed is not None:
            if restarted:
                followed.stream.restart()
            if followed.source == source:
                return
            self._stop(replica, followed)
        elif restarted:
            self._index.clear(replica.replica_id, ())
        if source is not None:
            self._start(replica, source)

    def unfollow(self, replica: Replica) -> None:
        """Stop following a replica that is gone, and forget what it held."""
        followed = self._followed_by_replica.get(replica.replica_id)
        if followed is not None:
            self._stop(replica, followed)
        else:
            self._index.clear(replica.replica_id, ())

    def close(self) -> None:
        """Stop all streams."""
        for followed in self._followed_by_replica.values():
            followed.task.cancel()
        self._followed_by_replica.clear()

    def _start(self, replica: Replica, source: Source) -> None:
        def synced() -> None:
            replica.follows_events = True

        stream = KvEventStream(
            source=source,
            translator=Translator(replica.model_key, self._max_blocks),
            on_change=lambda change: self._feed(replica.replica_id, change),
            on_synced=synced,
        )
        task = asyncio.create_task(stream.run(self._context))
        self._followed_by_replica[replica.replica_id] = _Followed(source, stream, task)

    def _stop(self, replica: Replica, followed: _Followed) -> None:
        followed.task.cancel()
        followed.stream.restart()
        replica.follows_events = False
        del self._followed_by_replica[replica.replica_id]

    def _feed(self, replica: ReplicaId, change: Change) -> None:
        match change:
            case Stored():
                self._index.store(replica, change.keys, change.tier)
            case Removed():
                self._index.remove(replica, change.keys, change.tier)
            case Cleared():
                self._index.clear(replica, change.keys)
