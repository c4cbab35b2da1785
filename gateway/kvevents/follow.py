"""Keeps one KV event stream for each replica that publishes, and feeds the index from it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.background import Background, Work
from gateway.index.base import PrefixIndex
from gateway.kvevents.subscriber import Context, KvEventStream, Source
from gateway.kvevents.translate import Change, Cleared, Removed, Stored, Translator
from gateway.kvevents.turns import Turns
from gateway.replicas.replica import Replica, Told
from routing.types import ReplicaId, Tier


@dataclass(frozen=True, slots=True)
class _Followed:
    source: Source
    stream: KvEventStream
    task: asyncio.Task[None]


class Division(Protocol):
    """How several gateways divide replicas among them: each one's events are followed by one."""

    def is_owned(self, replica: ReplicaId) -> bool:
        """Return whether this gateway follows it."""
        ...

    def told(self, replica: ReplicaId) -> Told | None:
        """Return what the gateway says that does; None where there is none."""
        ...

    def doubt(self, replica: ReplicaId, started_at: float | None) -> None:
        """Tell the gateway that follows it that what it holds is another thing now.

        Args:
            replica: Which.
            started_at: When its new process began, in its own seconds; None for the same process,
                which contradicts what it is believed to hold.
        """
        ...


class Undivided:
    """One gateway, which follows all replicas."""

    def is_owned(self, replica: ReplicaId) -> bool:  # noqa: ARG002 - all of them
        """Return that it is."""
        return True

    def told(self, replica: ReplicaId) -> Told | None:  # noqa: ARG002 - of any
        """Return nothing: there is nobody else."""
        return None

    def doubt(self, replica: ReplicaId, started_at: float | None) -> None:
        """Do nothing: there is nobody to tell."""


class Followers:
    """The KV event streams of the replicas that this gateway follows.

    Args:
        index: Takes the changes.
        context: Of all sockets.
        max_blocks: Blocks that one replica's stream remembers at most.
        now: Monotonic seconds.
        division: Which replicas are followed here.
        background: Runs the streams.

    Attributes:
        num_removed: Blocks that events reported as removed, by replica and tier.
        take_shared: Takes what events tell of the shared pool, and returns whether it did; else it
            goes into the index.
    """

    def __init__(
        self,
        index: PrefixIndex,
        context: Context,
        max_blocks: int,
        now: Callable[[], float],
        division: Division,
        background: Background,
    ) -> None:
        self._index = index
        self.num_removed: Counter[tuple[ReplicaId, Tier]] = Counter()
        self.take_shared: Callable[[Replica, Change], bool] | None = None
        self._division = division
        self._background = background
        self._heard_start: dict[ReplicaId, float] = {}
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
            replica: Whose facts were just read, or which may be followed by another gateway now.
            restarted: Its engine process is a new one, so what it held is gone.
        """
        if restarted:
            self._restarted(replica, replica.facts.started_at)
        source = replica.kv_events if self._division.is_owned(replica.replica_id) else None
        followed = self._followed_by_replica.get(replica.replica_id)
        if followed is not None:
            if followed.source == source:
                return
            self._stop(replica, followed)
        if source is not None:
            self._start(replica, source)
        else:
            self._take_word(replica)

    def doubted(self, replica: Replica, started_at: float | None) -> None:
        """Take another gateway's doubt in a replica that is followed here; see `Division.doubt`."""
        if started_at is None:
            self.distrust(replica)
        elif replica.facts.started_at != started_at:  # else we noticed too
            self._restarted(replica, started_at)

    def unfollow(self, replica: Replica) -> None:
        """Stop following a replica that is gone, and forget what it held."""
        followed = self._followed_by_replica.get(replica.replica_id)
        if followed is not None:
            self._stop(replica, followed)
        else:
            self._index.clear(replica.replica_id, ())
        self._heard_start.pop(replica.replica_id, None)
        for tier in Tier:
            del self.num_removed[replica.replica_id, tier]

    def distrust(self, replica: Replica) -> None:
        """Forget what a replica was believed to hold; where it publishes, it tells it again."""
        followed = self._followed_by_replica.get(replica.replica_id)
        if followed is not None:
            followed.stream.resync()
        else:
            self._index.clear(replica.replica_id, ())
            self._division.doubt(replica.replica_id, None)

    def close(self) -> None:
        """Stop all streams."""
        for followed in self._followed_by_replica.values():
            followed.task.cancel()
        self._followed_by_replica.clear()

    def _restarted(self, replica: Replica, started_at: float | None) -> None:
        """Forget what a process held that is gone: once, whoever notices it first."""
        replica_id = replica.replica_id
        if started_at is not None and self._heard_start.get(replica_id) == started_at:
            return
        if started_at is not None:
            self._heard_start[replica_id] = started_at
        followed = self._followed_by_replica.get(replica_id)
        if followed is not None:
            followed.stream.restart()
        else:
            self._index.clear(replica_id, ())
            self._division.doubt(replica_id, started_at)

    def _take_word(self, replica: Replica) -> None:
        """Count on what the gateway says that follows it, if another one does."""
        told = self._division.told(replica.replica_id)
        if told != replica.told:
            replica.told = told
            replica.events_block_size = told.block_size if told is not None else None
            replica.judge_events()

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
        replica.stream, replica.told = stream, None
        run = partial(stream.run, self._context)
        task = self._background.start(Work.KV_EVENTS, run, replica_id)
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
        if self.take_shared is not None and self.take_shared(replica, change):
            if isinstance(change, Removed):
                self.num_removed[replica_id, change.tier] += len(change.keys)
            return
        match change:
            case Stored():
                self._index.store(replica_id, change.keys, change.tier, change.parents)
                if replica.stream is not None:
                    replica.events_block_size = replica.stream.translator.block_size
            case Removed():
                self.num_removed[replica_id, change.tier] += len(change.keys)
                self._index.remove(replica_id, change.keys, change.tier)
            case Cleared():
                self._index.clear(replica_id, change.keys)
