"""Keeps one KV event stream for each replica that publishes, and feeds the index from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.index.base import PrefixIndex
from gateway.kvevents.subscriber import Context, KvEventStream, Source
from gateway.kvevents.translate import Change, Cleared, Removed, Stored, Translator
from gateway.kvevents.turns import Turns
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
        now: Monotonic seconds.
    """

    def __init__(
        self, index: PrefixIndex, context: Context, max_blocks: int, now: Callable[[], float]
    ) -> None:
        self._index = index
        self._context = context
        self._max_blocks = max_blocks
        self._now = now
        self._turns = Turns(now)
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

    def distrust(self, replica: Replica) -> None:
        """Forget what a replica was believed to hold; where it publishes, it tells it again."""
        followed = self._followed_by_replica.get(replica.replica_id)
        if followed is not None:
            followed.stream.resync()
        else:
            self._index.clear(replica.replica_id, ())

    def close(self) -> None:
        """Stop all streams."""
        for followed in self._followed_by_replica.values():
            followed.task.cancel()
        self._followed_by_replica.clear()

    def _start(self, replica: Replica, source: Source) -> None:
        replica_id, index = replica.replica_id, self._index
        stream = KvEventStream(
            source=source,
            translator=Translator(
                replica.model_key,
                self._max_blocks,
                lambda keys, tier: index.held(replica_id, keys, tier),
            ),
            on_change=lambda change: self._feed(replica, change),
            turns=self._turns,
            capacity=lambda: replica.facts.num_blocks,
            now=self._now,
            on_standing=replica.judge_events,
        )
        replica.stream = stream
        task = asyncio.create_task(stream.run(self._context), name=f"events {replica_id}")
        self._followed_by_replica[replica_id] = _Followed(source, stream, task)

    def _stop(self, replica: Replica, followed: _Followed) -> None:
        followed.task.cancel()
        followed.stream.restart()
        replica.stream = None
        replica.events_block_size = None
        replica.judge_events()
        del self._followed_by_replica[replica.replica_id]

    def _feed(self, replica: Replica, change: Change) -> None:
        replica_id = replica.replica_id
        match change:
            case Stored():
                self._index.store(replica_id, change.keys, change.tier)
                if replica.stream is not None:
                    replica.events_block_size = replica.stream.translator.block_size
            case Removed():
                self._index.remove(replica_id, change.keys, change.tier)
            case Cleared():
                self._index.clear(replica_id, change.keys)
