"""The exchange: one script call in which a gateway tells and hears everything; pace.py says when.

Nothing here is on a request's path. A call that fails changes nothing but the age of what was
heard; what that means is said where it is used: loads (loads.py), lives (lives.py), the rest stays
as it is. With nobody to exchange with for long, a gateway follows all replicas by itself, as one
that knows of no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import Any

from gateway.background import Background, Work
from gateway.kvevents.follow import Followers
from gateway.observability.gateway_metrics import GatewayMetrics
from gateway.observability.logging import EventLog
from gateway.redis.errors import LinkError
from gateway.redis.layout import exchange_keys
from gateway.redis.scripts import Script
from gateway.replicas.registry import Registry
from gateway.replicas.replica import Told
from gateway.shared.division import SharedDivision
from gateway.shared.ejections import Ejections
from gateway.shared.flushes import Flushes
from gateway.shared.hearing import Hearing
from gateway.shared.holds import Holds
from gateway.shared.lives import SharedLives
from gateway.shared.loads import SharedLoads
from gateway.shared.ownership import LEASE_S, RETURN_S, Order, Ownership
from gateway.shared.pace import Pace
from gateway.shared.rates import Rates
from gateway.shared.table import read_stamped, read_table
from gateway.shared.word import Word, encode_word
from routing.types import ReplicaId

# A tick that takes longer is given up, and the next one tells more recent things.
DEADLINE_S = 0.5
# Nobody was ever there: the first answer takes a connection, which takes a second at most.
ALONE_AT_START_S = 2.0
# Somebody was there. A fail-over takes some seconds, and to follow all replicas costs each of them
# a replay to every gateway; so gateways wait, and not all equally long.
ALONE_AFTER_S = 10.0
ALONE_SPREAD_S = 10.0

Argument = bytes | str | int | float
Call = Callable[[Script, Sequence[bytes], Sequence[Argument], float], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Voices:
    """What gateways talk about."""

    loads: SharedLoads
    division: SharedDivision
    ejections: Ejections
    holds: Holds
    rates: Rates
    flushes: Flushes


@dataclass(frozen=True, slots=True)
class View:
    """What a gateway sees of the others, for people and metrics.

    Attributes:
        me: Its own id.
        gateways: Ids of those that are there, its own included.
        num_owned: Replicas that it follows for all.
        age_s: Since it heard the others; since its start where it never did.
        is_alone: Whether it acts as if there were no others, as nobody can be heard.
    """

    me: str
    gateways: Sequence[str]
    num_owned: int
    age_s: float
    is_alone: bool

    def report(self) -> dict[str, Any]:
        """Return it for people."""
        return {
            "id": self.me,
            "live": list(self.gateways),
            "owned": self.num_owned,
            "heard_s_ago": round(self.age_s, 3),
            "alone": self.is_alone,
        }


class Exchange:
    """One gateway's part in the exchange.

    Args:
        call: Runs the script; see `gateway.redis.link.RedisLink.call`.
        script: lua/exchange.lua.
        namespace: Of all keys.
        ownership: Of this gateway; has its id.
        lives: Told when a tick went well.
        voices: Told what others said.
        pace: Says when to tick.
        registry: The replicas.
        followers: Told to look again when replicas have another owner.
        metrics: Counts changes of owners.
        background: Runs it, and notes its crashes.
        log: Gets one line when gateways come or go, and when this one begins to act alone.
        now: Monotonic seconds.
        rng: Spreads when several gateways begin to act alone.
    """

    def __init__(  # noqa: PLR0913 - the one place where everything that is shared meets
        self,
        *,
        call: Call,
        script: Script,
        namespace: str,
        ownership: Ownership,
        lives: SharedLives,
        voices: Voices,
        pace: Pace,
        registry: Registry,
        followers: Followers,
        metrics: GatewayMetrics,
        background: Background,
        log: EventLog,
        now: Callable[[], float],
        rng: Random,
    ) -> None:
        self._call = call
        self._script = script
        self._keys = exchange_keys(namespace)
        self._ownership, self._lives, self._voices = ownership, lives, voices
        self._pace = pace
        self._registry, self._followers, self._metrics = registry, followers, metrics
        self._log, self._now, self._rng = log, now, rng
        self._hearing = Hearing(log)
        self._task: asyncio.Task[None] | None = None
        self._alone_at = now() + ALONE_AT_START_S
        self._holds_version = b""
        self._wanted: dict[ReplicaId, set[str]] = {}
        self._background, self._crashes = background, background.crashes(Work.EXCHANGE)
        self._begun_at = now()
        self._left_at = float("-inf")
        self._heard_at: float | None = None
        self._server_ahead_ms: float | None = None
        lives.wake = voices.holds.wake = voices.division.wake = pace.wake
        voices.flushes.wake = pace.wake

    def start(self) -> None:
        """Exchange from now on."""
        self._task = self._background.start(Work.EXCHANGE, self._run)

    async def close(self) -> None:
        """Stop, and let others take over at once."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._heard_at is not None:
            try:
                await self._ask(b"", self._ownership.let_go())
            except LinkError:
                return  # the lease ends by itself

    def view(self) -> View:
        """Return what this gateway sees of the others now."""
        ownership, heard_at = self._ownership, self._heard_at
        since = self._begun_at if heard_at is None else heard_at
        return View(
            me=ownership.me,
            gateways=sorted(ownership.live),
            num_owned=len(ownership.held),
            age_s=self._now() - since,
            is_alone=ownership.is_alone,
        )

    def flush(self, model: str | None = None) -> dict[str, int]:
        """Forget what is known of shared pools, at all gateways; see `Flushes.flush`."""
        return self._voices.flushes.flush(model)

    async def settle(self) -> None:
        """Wait until the others can know what operators said here; see `Holds.settle`."""
        await self._voices.holds.settle()

    def answered(self, since: float) -> bool:
        """Return whether all others told what they have in flight after they heard a word.

        While one of them cannot be heard, nobody knows what it has in flight: it counts as
        unanswered until its lease is over, or until this gateway acts alone. One that is not there
        any more may be about to come back, as after the loss of a database.

        Args:
            since: When an operator said it here, monotonic seconds.
        """
        ownership, voices, now = self._ownership, self._voices, self._now()
        if ownership.is_alone:
            return True
        if now - self._left_at < RETURN_S or not voices.loads.are_all_known(now):
            return False
        return len(ownership.live) == 1 or voices.holds.was_heard(since, now)

    async def _run(self) -> None:
        while True:
            started = self._now()
            await self._crashes.survive(self.tick())  # a pause would let every lease end
            await self._pace.rest(started)

    async def tick(self) -> None:
        """Tell and hear once."""
        asked_at = self._now()
        known = [replica.replica_id for replica in self._registry]
        word, holds = self._word(known, asked_at), self._voices.holds.orders()
        orders = self._ownership.orders(known, self._tellings(), self._wanted, asked_at)
        text, told_at = encode_word(word), self._now()
        try:
            reply = await self._ask(text, [*orders, *holds])
        except LinkError as error:
            self._voices.holds.give_up()
            self._not_heard(error.reason)
            return
        answered_at = self._now()
        self._hear(reply, known, asked_at, holds)
        self._pace.heard(
            len(self._ownership.live),
            took_s=answered_at - told_at,
            spent_s=told_at - asked_at + self._now() - answered_at,
            is_busy=self._voices.loads.is_busy,
        )

    async def _ask(self, word: bytes, orders: Sequence[Order]) -> Any:
        ownership = self._ownership
        table = ownership.table
        args: list[Argument] = [ownership.me, word, int(LEASE_S * 1000)]
        args += [table.version, self._holds_version, ownership.high_water, self._server_ms()]
        for order in orders:
            args += order
        return await self._call(self._script, self._keys, args, DEADLINE_S)

    def _server_ms(self) -> Argument:
        """Return the server's time now, as the last tick told it; empty before the first one."""
        if self._server_ahead_ms is None:
            return ""
        return round(self._server_ahead_ms + self._now() * 1000)

    def _word(self, known: Sequence[ReplicaId], now: float) -> Word:
        voices = self._voices
        return Word(
            loads=voices.loads.tell(now),
            ejected=voices.ejections.tell(),
            doubts=voices.division.tell(),
            wants=tuple(self._ownership.wants(known, now)),
            taken=voices.rates.tell(),
            flushed=voices.flushes.tell(),
        )

    def _tellings(self) -> dict[ReplicaId, Told]:
        """Return what we can say of the events that we follow."""
        return {
            replica_id: Told(
                replica.follows_events, replica.is_partly_known, replica.events_block_size
            )
            for replica_id in self._followers.streams
            if (replica := self._registry.get(replica_id)) is not None
        }

    def _hear(
        self, reply: Any, known: Sequence[ReplicaId], asked_at: float, holds: list[Order]
    ) -> None:
        now = self._now()
        server_ms, lives_version, lives, holds_version, held, flat = reply
        # Rather too little: what was sent looks late then, by as much each time, and one word said
        # after another stays later. With too much, one that the server read late would come last.
        self._server_ahead_ms = server_ms - now * 1000
        self._lives.hear_clock(server_ms / 1000 - asked_at)
        words = self._hearing.read(flat, (asked_at + now) / 2)
        self._hear_owners(lives_version, lives, words, known, asked_at)
        self._voices.holds.brought(holds)
        if held is not None:
            self._holds_version = holds_version
            self._voices.holds.hear(read_stamped(held), server_ms, asked_at)
        self._voices.loads.hear(words, now)
        self._voices.ejections.hear(words)
        self._voices.rates.hear(words)
        self._voices.flushes.hear(words)
        for replica_id, started_at in self._voices.division.hear(words):
            replica = self._registry.get(replica_id)
            if replica is not None:
                self._followers.doubted(replica, started_at)

    def _hear_owners(
        self,
        version: bytes,
        flat: Sequence[bytes] | None,
        words: Mapping[str, tuple[float, Word]],
        known: Sequence[ReplicaId],
        asked_at: float,
    ) -> None:
        ownership, now = self._ownership, self._now()
        before = (ownership.table, ownership.live, ownership.is_alone)
        held = set(ownership.held)
        table = ownership.table if flat is None else read_table(version, flat)
        self._wanted = {}
        for gateway, (_, word) in words.items():
            for wanted in word.wants:
                self._wanted.setdefault(ReplicaId(wanted), set()).add(gateway)
        ownership.hear(table, words.keys(), known, now)
        self._tell_of(before[1], ownership.live)
        self._count(held, ownership.held)
        self._lives.heard(asked_at)
        self._heard_at = asked_at
        self._alone_at = now + ALONE_AFTER_S + self._rng.uniform(0.0, ALONE_SPREAD_S)
        if before != (ownership.table, ownership.live, False):
            self._look_again()

    def _not_heard(self, reason: str) -> None:
        ownership = self._ownership
        if not ownership.is_alone and self._now() >= self._alone_at:
            self._lives.alone()
            problem = "this gateway follows all replicas itself"
            self._log.warning("exchange_lost", reason=reason, problem=problem)
            self._look_again()

    def _look_again(self) -> None:
        for replica in list(self._registry):
            self._followers.follow(replica, restarted=False)

    def _count(self, before: Set[ReplicaId], after: Set[ReplicaId]) -> None:
        for replica in after - before:
            self._metrics.owner_changes.labels(replica, "gained").inc()
        for replica in before - after:
            if self._registry.get(replica) is not None:
                self._metrics.owner_changes.labels(replica, "lost").inc()

    def _tell_of(self, before: frozenset[str], after: frozenset[str]) -> None:
        for gateway in sorted(after - before):
            self._log.info("gateway_joined", gateway=gateway)
        if before - after:
            self._left_at = self._now()
        for gateway in sorted(before - after):
            self._log.info("gateway_left", gateway=gateway)
