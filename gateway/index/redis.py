"""The index of several gateways: what is known here, and in Redis what the others know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial

from gateway.background import Background, Work
from gateway.index.base import Prediction
from gateway.index.lives import Lives
from gateway.index.predicting import Predicting
from gateway.index.reading import POOL, Reader, Runs
from gateway.index.segments import cut
from gateway.index.steps import Steps
from gateway.index.writing import Writer
from gateway.observability.index_metrics import SharedIndexMetrics
from gateway.redis.errors import LinkError
from gateway.redis.link import RedisLink
from routing.block_map import BlockMap
from routing.types import BlockKey, PrefixMatch, ReplicaId, Tier


class RedisIndex:
    """A `PrefixIndex` over a map of its own and Redis. Made inside the running event loop.

    The map is the truth of replicas whose events come in here, and it is asked first: a gateway
    that is alone and follows all replicas never reads Redis. Of other replicas it knows only what
    this gateway predicted.

    Args:
        link: The way to Redis.
        lives: Which entries count, and which of them this gateway writes.
        blocks: Its own map, empty.
        timeout_s: Returns the seconds that a look-up may take.
        entry_ttl_s: Seconds that entries live unless they are renewed.
        metrics: How it is read and written.
        now: Monotonic seconds.
    """

    waits = True

    def __init__(
        self,
        link: RedisLink,
        lives: Lives,
        blocks: BlockMap,
        timeout_s: Callable[[], float],
        entry_ttl_s: float,
        metrics: SharedIndexMetrics,
        now: Callable[[], float],
    ) -> None:
        self._lives = lives
        self._blocks = blocks
        self._steps = Steps(blocks)
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._now = now
        self._reader = Reader(link, lives, metrics, now)
        self._writer = Writer(link, lives, blocks, metrics, entry_ttl_s, now)
        self._predicting = Predicting(link.namespace, self._writer.add_call)
        self._seen_version: int | None = None
        self._asks = False
        self._task: asyncio.Task[None] | None = None

    def start(self, background: Background) -> None:
        """Write from now on."""
        crashes = background.crashes(Work.INDEX_WRITER)
        self._task = background.start(Work.INDEX_WRITER, partial(self._writer.run, crashes))

    def close(self) -> None:
        """Stop writing; what waits is dropped."""
        if self._task is not None:
            self._task.cancel()

    @property
    def is_written(self) -> bool:
        """Whether all that is known here is in Redis."""
        return self._writer.is_idle

    async def lookup(
        self, keys_by_block_size: Mapping[int, Sequence[BlockKey]]
    ) -> Mapping[ReplicaId, PrefixMatch]:
        """Ask the map, and Redis too where replicas are followed elsewhere."""
        found = await self._steps.lookup(keys_by_block_size, self._now())
        if not self._asks_others():
            self._metrics.lookups.labels("local").inc()
            return found
        result = "shared"
        asked = {size: keys for size, keys in keys_by_block_size.items() if keys}
        reads = [self._read(keys) for keys in asked.values()]
        # Several at once: one after the other, the last would have what the deadline leaves it.
        several = len(reads) > 1
        answers = await asyncio.gather(*reads) if several else [await read for read in reads]
        for block_size, (runs_by_life, problem) in zip(asked, answers, strict=True):
            result = problem or result
            self._add(found, runs_by_life, block_size)
        self._metrics.lookups.labels(result).inc()
        return found

    def store(
        self,
        replica: ReplicaId,
        keys: Sequence[BlockKey],
        tier: Tier,
        parents: Sequence[BlockKey | None] = (),
    ) -> None:
        """Record stored blocks here and there."""
        self._blocks.store(replica, keys, tier)  # which sweeps
        self._writer.chains.drop_swept()
        if self._lives.is_owned(replica):
            self._writer.store(replica, keys, tier, parents)

    def remove(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> None:
        """Record removed blocks here and there."""
        self._blocks.remove(replica, keys, tier)
        self._writer.remove(replica, keys, tier)
        self._writer.chains.drop(keys)

    def clear(self, replica: ReplicaId, keys: Iterable[BlockKey]) -> None:
        """Forget a replica, in O(1); where it is followed here, for all gateways."""
        self._steps.forget(replica)
        self._blocks.clear(replica, self._writer.chains.sweeping(keys))
        if self._lives.is_owned(replica):
            self._writer.clear(replica)

    def held(self, replica: ReplicaId, keys: Sequence[BlockKey], tier: Tier) -> Set[BlockKey]:
        """Return which keys a replica that is followed here was reported to hold."""
        return self._blocks.held(replica, keys, tier)

    def predict(
        self,
        replica: ReplicaId,
        keys: Sequence[BlockKey],
        ttl_s: float,
        max_blocks: int | None,
        num_held: int = 0,
    ) -> Prediction:
        """Record a prediction here, and there what is new in it."""
        until = self._now() + ttl_s
        num_known = self._steps.predict(replica, keys, until, max_blocks)
        life = self._lives.life_of(replica)
        if life is not None and keys:
            parts = cut(keys)
            self._predicting.predict(life, parts, ttl_s, num_held)
            if self._asks:
                self._reader.remember(parts, life)
        # What was found there others predicted, or events told: it is not ours to take back.
        return Prediction(replica, keys[max(num_known, num_held) :], until, keys)

    def withdraw(self, prediction: Prediction) -> None:
        """Take a prediction back, here and there."""
        self._steps.withdraw(prediction.replica, prediction.keys, prediction.until)
        life = self._lives.life_of(prediction.replica)
        if life is not None and prediction.prompt:
            parts = cut(prediction.prompt)
            self._reader.forget(parts)
            num_kept = len(prediction.prompt) - len(prediction.keys)
            self._predicting.withdraw(life, parts, num_kept)

    def num_blocks(self) -> Mapping[Tier, int]:
        """Return how many different blocks each tier knows here."""
        return {tier: self._blocks.num_blocks(tier) for tier in Tier}

    def _asks_others(self) -> bool:
        """Return whether there are others, or replicas that nobody here follows yet."""
        version = self._lives.version
        if version != self._seen_version:
            self._seen_version = version
            replicas = (self._lives.replica_of(life) for life in self._lives.live())
            self._asks = self._lives.has_others or any(
                replica is not None and not self._lives.is_owned(replica) for replica in replicas
            )
        return self._asks

    async def _read(self, keys: Sequence[BlockKey]) -> tuple[Mapping[int, Runs], str | None]:
        """Return what Redis says of a prompt; where it does not, what it said, and why."""
        try:
            return await self._reader.read(keys, self._timeout_s()), None
        except LinkError as error:
            return self._reader.recall(keys), error.reason

    def _add(
        self,
        found: dict[ReplicaId, PrefixMatch],
        runs_by_life: Mapping[int, Runs],
        block_size: int,
    ) -> None:
        """Add to what is known here what the others know."""
        pool = runs_by_life.get(POOL, (0, 0, 0, 0))[3]
        for life, runs in runs_by_life.items():
            replica = self._lives.replica_of(life)
            if replica is None:
                continue
            reported, expected, in_l1, in_pool = runs
            if self._lives.is_owned(replica):
                # What it holds is known better here; what others sent there is not.
                expected = expected if expected > reported else 0
                reported, in_l1, in_pool = 0, expected, max(expected, pool)
            known = found.get(replica)
            found[replica] = _longer(known, (reported, expected, in_l1, in_pool), block_size)


def _longer(match: PrefixMatch | None, runs: Runs, block_size: int) -> PrefixMatch:
    """Return a match in which each tier reaches as far as the better of two views says."""
    reported, expected = runs[0] * block_size, runs[1] * block_size
    in_l1, in_pool = runs[2] * block_size, runs[3] * block_size
    if match is not None:
        l0, l1 = match.l0_tokens, match.l0_tokens + match.l1_tokens
        reported = max(reported, match.confirmed_tokens)
        expected = max(expected, l0)
        in_l1 = max(in_l1, l1, expected)
        in_pool = max(in_pool, l1 + match.l2_tokens, in_l1)
    return PrefixMatch(
        l0_tokens=expected,
        l1_tokens=in_l1 - expected,
        l2_tokens=in_pool - in_l1,
        confirmed_tokens=reported,
    )
