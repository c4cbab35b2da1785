"""Writes what this gateway's event streams say into Redis, behind the requests.

What is queued, sent or refused never holds up a stream. Where a change did not get through, the
replica's life is not the truth any more: it is ended, and all that is held is written again in the
next one. That covers every fault alike (docs/adr/0030).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import Final

from gateway.background import Crashes
from gateway.index.chains import Chains
from gateway.index.lives import Lives
from gateway.index.queue import Write, WriteQueue
from gateway.index.reading import POOL
from gateway.index.segments import Names, tag_of
from gateway.observability.index_metrics import SharedIndexMetrics
from gateway.redis.connection import Reply
from gateway.redis.errors import LinkError
from gateway.redis.link import Call, RedisLink
from gateway.redis.node import LinkState
from gateway.redis.scripts import load_script
from routing.block_map import BlockMap
from routing.types import BlockKey, ReplicaId, Tier

_WRITE: Final = load_script("gateway.index", "lua/write.lua", writes=True)
_RENEW: Final = load_script("gateway.index", "lua/renew.lua", writes=True)

# Changes wait so long for others of their segment: an engine's step takes as long.
FLUSH_S = 0.025
# Changes that wait at most, in blocks: what 8 replicas store at 10,000 blocks/s in 2.5 s, 10 MB.
MAX_QUEUED_BLOCKS = 200_000
# Sent before the next replies are awaited. A server runs all that one connection sent before it
# looks at the next one, so this is what a look-up may have to wait for: 1 ms.
MAX_SENT_BLOCKS = 256
MAX_SENT_CALLS = 32
# Predictions that wait: what 100 requests/s of long prompts make in a second.
MAX_WAITING_CALLS = 4000
# Seconds for the replies: a server that needs longer for 4,000 blocks is not keeping up.
REPLY_DEADLINE_S = 2.0
# Blocks that wait, up to which more are queued to be written again.
MAX_WAITING_REFILL_BLOCKS = 4000
# Blocks looked at in one turn when all that is held is written again: under 1 ms of the loop.
MAX_REFILL_BLOCKS = 2000
# Between two new lives of one replica because of failed writes.
MIN_LIFE_S = 1.0
# Segments are renewed when a third of their time is over, so that one round may fail.
RENEWALS_PER_TTL = 3
RENEW_EVERY_S = 1.0
# Segments renewed by one call.
MAX_CALL_SEGMENTS = 200


class Writer:
    """Writes for the replicas whose event streams are here.

    Args:
        link: The way to Redis.
        lives: Which lives may be written.
        blocks: What is held, by replica.
        metrics: What became of changes.
        entry_ttl_s: Seconds that segments live unless they are renewed.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        link: RedisLink,
        lives: Lives,
        blocks: BlockMap,
        metrics: SharedIndexMetrics,
        entry_ttl_s: float,
        now: Callable[[], float],
    ) -> None:
        self._link = link
        self._lives = lives
        self._blocks = blocks
        self._metrics = metrics
        self._ttl_s = max(1, round(entry_ttl_s))
        self._now = now
        self._names = Names(link.namespace)
        self.chains = Chains(blocks.is_held)
        self._queue = WriteQueue()
        self._predictions: list[tuple[Call, int]] = []  # each with its number of blocks
        self._wake = asyncio.Event()
        self._is_sending = False
        self._life_by_replica: dict[ReplicaId, int] = {}
        self._untrue: set[ReplicaId] = set()
        self._renewed_at: dict[ReplicaId, float] = {}
        self._refills: list[tuple[dict[ReplicaId, int], Iterator[BlockKey]]] = []
        self._num_met = link.num_met
        self._checked_version: int | None = None
        self._anchors: Iterator[BlockKey] = iter(())
        self._anchors_renewed_at = now()

    @property
    def is_idle(self) -> bool:
        """Whether all that is known here was written."""
        self._check_lives()
        waits = self._has_changes() or self._refills or self._untrue
        return not (waits or self._is_sending)

    def store(
        self,
        replica: ReplicaId,
        keys: Sequence[BlockKey],
        tier: Tier,
        parents: Sequence[BlockKey | None],
    ) -> None:
        """Write that a replica holds blocks; see `gateway.index.base.PrefixIndex.store`."""
        num_unplaced = self.chains.add(keys, parents)
        if num_unplaced:
            self._metrics.dropped.labels("unplaced").inc(num_unplaced)
        life = self._life(replica)
        if life is not None:
            self._store(POOL if tier is Tier.L2 else life, keys, tier)
            self._check_room(replica, life)

    def remove(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Write that a replica holds blocks of a tier no longer."""
        life = self._life(replica)
        if life is not None:
            of_life = POOL if tier is Tier.L2 else life
            for anchor, some in self.chains.by_anchor(keys).items():
                self._queue.remove(of_life, anchor, some, tier)
            self._check_room(replica, life)

    def clear(self, replica: ReplicaId) -> None:
        """End a replica's life: nothing that was written of it counts any more."""
        self._forget(replica)
        self._lives.renew(replica)

    def add_call(self, call: Call, num_blocks: int) -> None:
        """Send a call of predictions with the next changes, which is at once."""
        if len(self._predictions) < MAX_WAITING_CALLS:
            self._predictions.append((call, num_blocks))
            self._wake.set()
        else:
            self._metrics.dropped.labels("predicted").inc(num_blocks)

    async def run(self, crashes: Crashes) -> None:
        """Write until cancelled.

        Args:
            crashes: Of this task.
        """
        while True:
            await self._rest()
            if not await crashes.survive(self._turn()):
                self._is_sending = False
                self._untrue.update(self._life_by_replica)  # nobody knows what did not get through
                await asyncio.sleep(FLUSH_S)

    async def _rest(self) -> None:
        """Wait for changes; where there are more already, only let others run."""
        if self._has_changes():
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _has_changes(self) -> bool:
        return bool(self._queue.num_blocks or self._predictions)

    async def _turn(self) -> None:
        """Write once; bounded, so that lives are looked at however much there is to write."""
        self._check_lives()
        self._refill()
        await self._flush()
        await self._renew_segments()
        self._metrics.queued.set(self._queue.num_blocks)

    def _life(self, replica: ReplicaId) -> int | None:
        """Return the life to write in; None where nothing may be written now."""
        life = self._lives.owned(replica)
        if life is None:
            if self._life_by_replica.get(replica) is not None:
                self._untrue.add(replica)
            return None
        if life != self._life_by_replica.get(replica):
            self._begin({replica: life})
        return life

    def _check_lives(self) -> None:
        """Begin to write in lives that are new, and end those that are not true any more."""
        if self._link.num_met != self._num_met:
            self._num_met = self._link.num_met
            self._untrue.update(self._life_by_replica)
        if self._untrue and self._link.state in (LinkState.UP, LinkState.SLOW):
            self._end_untrue()
        if self._lives.version != self._checked_version:
            self._checked_version = self._lives.version
            self._forget_others()
            self._begin_new()

    def _forget_others(self) -> None:
        """Forget replicas that are not followed here any more."""
        is_owned = self._lives.is_owned
        for replica in [r for r in self._life_by_replica if not is_owned(r)]:
            self._forget(replica)
        self._renewed_at = {r: at for r, at in self._renewed_at.items() if is_owned(r)}

    def _begin_new(self) -> None:
        new: dict[ReplicaId, int] = {}
        for life in self._lives.live():
            replica = self._lives.replica_of(life)
            if replica is None or self._lives.owned(replica) != life:
                continue
            if self._life_by_replica.get(replica) != life:
                new[replica] = life
        if new:
            self._begin(new)

    def _end_untrue(self) -> None:
        now = self._now()
        for replica in list(self._untrue):
            if not self._lives.is_owned(replica):
                self._forget(replica)
            elif now - self._renewed_at.get(replica, now - MIN_LIFE_S) >= MIN_LIFE_S:
                self._renewed_at[replica] = now
                self.clear(replica)

    def _begin(self, life_by_replica: dict[ReplicaId, int]) -> None:
        """Write all that is held of some replicas into lives that are new."""
        for replica, life in life_by_replica.items():
            self._forget(replica)
            self._life_by_replica[replica] = life
        if len(self.chains):
            self._metrics.rewrites.inc(len(life_by_replica))
            self._refills.append((life_by_replica, iter(self.chains.keys())))

    def _forget(self, replica: ReplicaId) -> None:
        """Drop what waits to be written in a replica's life so far."""
        life = self._life_by_replica.pop(replica, None)
        if life is not None:
            self._queue.drop(life)
        self._untrue.discard(replica)
        for lives, _ in self._refills:
            lives.pop(replica, None)

    def _refill(self) -> None:
        """Queue the next of what has to be written again."""
        while self._refills and self._queue.num_blocks < MAX_WAITING_REFILL_BLOCKS:
            lives, keys = self._refills[0]
            some = list(islice(keys, MAX_REFILL_BLOCKS))
            if not some or not lives:
                self._refills.pop(0)
                continue
            for replica, life in lives.items():
                for tier in (Tier.L0, Tier.L1):
                    self._store_some(life, some, self._blocks.held(replica, some, tier), tier)
            self._store_some(POOL, some, self._blocks.in_pool(some), Tier.L2)

    def _store_some(
        self, life: int, keys: Iterable[BlockKey], held: Set[BlockKey], tier: Tier
    ) -> None:
        if held:  # most lives hold few of them
            self._store(life, [key for key in keys if key in held], tier)

    def _store(self, life: int, keys: Iterable[BlockKey], tier: Tier) -> None:
        for anchor, parent, part in self.chains.parts(keys):
            self._queue.store(life, anchor, parent, part, tier)

    def _check_room(self, replica: ReplicaId, life: int) -> None:
        if self._queue.num_blocks > MAX_QUEUED_BLOCKS:
            self._metrics.dropped.labels("queue").inc(self._queue.drop(life))
            self._untrue.add(replica)

    async def _flush(self) -> None:
        """Send what came first, and wait for the replies."""
        predictions = self._predictions[:MAX_SENT_CALLS]
        del self._predictions[:MAX_SENT_CALLS]
        writes = self._queue.take(MAX_SENT_BLOCKS, MAX_SENT_CALLS)
        calls = [call for call, _ in predictions] + self._calls_of(writes)
        if not calls:
            return
        self._is_sending = True
        replies = await self._link.call_many(calls, REPLY_DEADLINE_S)
        self._is_sending = False
        self._note_predictions(predictions, replies[: len(predictions)])
        for write, reply in zip(writes, replies[len(predictions) :], strict=True):
            self._note(write, reply)

    def _note_predictions(
        self, predictions: Sequence[tuple[Call, int]], replies: Sequence[Reply | LinkError]
    ) -> None:
        """Count what became of them; those that were lost are not said again."""
        written = dropped = refused = 0
        for (_, num_blocks), reply in zip(predictions, replies, strict=True):
            if isinstance(reply, LinkError):
                dropped += num_blocks
            else:
                written, refused = written + num_blocks, refused + reply
        for counter, number in (
            (self._metrics.written, written),
            (self._metrics.dropped, dropped),
            (self._metrics.refused, refused),
        ):
            if number:
                counter.labels("predicted").inc(number)

    def _calls_of(self, writes: Sequence[Write]) -> list[Call]:
        lives = b"".join(life.to_bytes(4, "little") for life in self._lives.live())
        newest, ttl_s = self._lives.high_water, self._ttl_s
        return [
            Call(
                _WRITE,
                (self._names.of_blocks(tag_of(write.anchor)),),
                (write.life.to_bytes(4, "little"), lives, newest, ttl_s, write.packed),
            )
            for write in writes
        ]

    def _note(self, write: Write, reply: Reply | LinkError) -> None:
        if not isinstance(reply, LinkError):
            self._metrics.written.labels("reported").inc(write.num_blocks)
            if reply:
                self._metrics.refused.labels("reported").inc(reply)
            return
        self._metrics.dropped.labels("failed").inc(write.num_blocks)
        for replica, life in self._life_by_replica.items():
            # What was to be said of the pool is said again with any replica.
            if write.life in (life, POOL):
                self._untrue.add(replica)

    async def _renew_segments(self) -> None:
        """Let the next segments live longer: all of them in a third of their time."""
        now = self._now()
        num_anchors = self.chains.num_segments
        if now - self._anchors_renewed_at < RENEW_EVERY_S or not num_anchors:
            return
        share = (now - self._anchors_renewed_at) * RENEWALS_PER_TTL / self._ttl_s
        self._anchors_renewed_at = now
        some = list(islice(self._anchors, max(1, round(num_anchors * share))))
        if not some:
            self._anchors = iter(self.chains.anchors())
            return
        names = [self._names.of_blocks(tag_of(anchor)) for anchor in some]
        step = 1 if self._link.is_cluster else MAX_CALL_SEGMENTS
        await self._link.call_many(
            [
                Call(_RENEW, names[start : start + step], (self._ttl_s,))
                for start in range(0, len(names), step)
            ],
            REPLY_DEADLINE_S,
        )
