"""What operators say to one gateway counts at all of them, and outlives them.

The last word about a replica's hold counts, and the last one about its weight. What was said while
Redis was away is brought later, with its age, so that it does not win over what was said after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from gateway.replicas.instructions import Instruction, Topic
from gateway.replicas.registry import Registry
from gateway.replicas.state import Hold, ReplicaState
from gateway.shared.ownership import Order
from routing.types import ReplicaId

# Of one tick; a gateway that comes back with more brings the rest with the next ones.
MAX_ORDERS = 64
# An operator waits so long for the others to be told, at most: as long as a tick may take.
SETTLE_S = 0.5
# So long after a word was brought all gateways have heard it, and told what they sent before: two
# ticks of the exchange and the time of two calls.
HEARD_AFTER_S = 0.5
# What the fields of the table begin with, before a replica's id.
_TOPIC_BY_PREFIX: Final[Mapping[str, Topic]] = {"r:": Topic.HOLD, "w:": Topic.WEIGHT}


class About(NamedTuple):
    """What a word is about."""

    replica: ReplicaId
    topic: Topic


class _Text(msgspec.Struct, array_like=True, frozen=True):
    """A hold as it stands in Redis, beside the time when it was given.

    Gateways of all releases read it (gateway/redis/layout.py), so only its end may grow.

    Attributes:
        state: Of the hold; empty for none.
        held_ms: For how long it was held already when this was said.
    """

    state: str
    note: str
    by: str
    held_ms: int


class _Pending(NamedTuple):
    """A word that was not brought yet.

    Attributes:
        at: When it was said, monotonic seconds.
        after_ms: The server's time of the word that it answers, so that it counts as later than
            that one, however the clocks and the ways of both compare; 0 for none.
    """

    at: float
    after_ms: int


class Holds:
    """Brings what was said here to the others, and what was said there to us.

    Args:
        registry: Knows what was said; told of what was said elsewhere.
        now: Monotonic seconds.
    """

    def __init__(self, registry: Registry, now: Callable[[], float]) -> None:
        self._registry = registry
        self._now = now
        self._said_at: dict[About, float] = {}
        self._heard_ms: dict[About, int] = {}
        self._pending: dict[About, _Pending] = {}
        self._brought_at = float("-inf")
        self._settled: asyncio.Future[None] | None = None
        self.wake: Callable[[], None] = _nobody
        """Called when there is something to bring."""
        registry.on_instruction = self._said

    def orders(self) -> list[Order]:
        """Return what has to be brought, oldest first."""
        now = self._now()
        return [
            Order(
                about.topic,
                about.replica,
                max(0, int((now - at) * 1000)),
                self._text(about, at, after_ms),
            )
            for about, (at, after_ms) in list(self._pending.items())[:MAX_ORDERS]
        ]

    def brought(self, orders: list[Order]) -> None:
        """Note that orders were carried out, each by the age that it told."""
        if orders:
            self._brought_at = self._now()
        for order in orders:
            about = About(order.replica, Topic(order.verb))
            said = self._pending.get(about)
            if said is not None and self._text(about, *said) == order.text:
                del self._pending[about]
        if not self._pending:
            self.give_up()

    def was_heard(self, since: float, now: float) -> bool:
        """Return whether the others heard what was said here at a moment, and told their loads."""
        return not self._pending and now - max(since, self._brought_at) >= HEARD_AFTER_S

    def give_up(self) -> None:
        """End all waits of `settle`: all was brought, or nothing can be brought now."""
        if self._settled is not None:
            self._settled.set_result(None)
            self._settled = None

    async def settle(self) -> None:
        """Wait until the others can know what was said here, or until nobody can be told."""
        if not self._pending:
            return
        if self._settled is None:
            self._settled = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._settled}, timeout=SETTLE_S)

    def hear(
        self, fields: Mapping[str, tuple[int, bytes]], server_ms: int, asked_at: float
    ) -> None:
        """Take the whole table of what operators said.

        Args:
            fields: By field: when, in the server's ms, and what.
            server_ms: The server's time then.
            asked_at: When it was asked for, monotonic seconds.
        """
        now, rows = self._now(), _by_subject(fields)
        for about, (ms, text) in rows.items():
            at = now - max(0, server_ms - ms) / 1000
            known_ms, self._heard_ms[about] = self._heard_ms.get(about, 0), ms
            ours = self._pending.get(about)
            if ours is not None and ours.at >= asked_at:
                self._pending[about] = _Pending(ours.at, ms)
                continue  # said since then, so it is later than all of this
            if ours is not None and ours.at > at:
                continue  # later too, and on its way
            if ms < known_ms and ours is None and self._is_news(about, text, at):
                # A word of a replica is never replaced by an earlier one but where the server lost
                # what it had acknowledged.
                self._pending[about] = _Pending(self._said_at.get(about, now), known_ms)
                continue
            self._pending.pop(about, None)
            self._take(about, at, text)
        for about in self._in_force() - rows.keys() - self._pending.keys():
            # Nothing is ever taken out of the table but by its bound: it was lost.
            self._pending[about] = _Pending(self._said_at.get(about, now), 0)
        self._heard_ms = {about: ms for about, ms in self._heard_ms.items() if about in rows}

    def _said(self, replica: ReplicaId, topic: Topic) -> None:
        about = About(replica, topic)
        now = self._said_at[about] = self._now()
        self._pending[about] = _Pending(now, self._heard_ms.get(about, 0))
        self.wake()

    def _take(self, about: About, at: float, text: bytes) -> None:
        self._said_at[about] = at
        if self._is_news(about, text, at):
            self._registry.instructed(about.replica, self._with(about, text, at))
        if not _is_said(self._registry.instructions.of(about.replica), about.topic):
            self._said_at.pop(about, None)

    def _in_force(self) -> Set[About]:
        instructions = self._registry.instructions
        return {
            About(replica, topic)
            for replica in instructions.ids()
            for topic in Topic
            if _is_said(instructions.of(replica), topic)
        }

    def _is_news(self, about: About, text: bytes, at: float) -> bool:
        ours = self._registry.instructions.of(about.replica)
        return _apart_from_time(self._with(about, text, at)) != _apart_from_time(ours)

    def _with(self, about: About, text: bytes, at: float) -> Instruction:
        """Return what is said of a replica with a word in its place; nobody obeys a broken one."""
        ours = self._registry.instructions.of(about.replica)
        try:
            if about.topic is Topic.WEIGHT:
                return replace(ours, weight=msgspec.json.decode(text, type=float | None))
            return replace(ours, hold=_decode_hold(text, at))
        except (msgspec.DecodeError, ValueError):
            return ours

    def _text(self, about: About, at: float, after_ms: int) -> str:
        said = self._registry.instructions.of(about.replica)
        told = said.weight if about.topic is Topic.WEIGHT else _encoded_hold(said.hold, at)
        return f"{after_ms} {msgspec.json.encode(told).decode()}"


def _by_subject(fields: Mapping[str, tuple[int, bytes]]) -> Mapping[About, tuple[int, bytes]]:
    return {
        About(ReplicaId(field[2:]), _TOPIC_BY_PREFIX[field[:2]]): row
        for field, row in fields.items()
        if field[:2] in _TOPIC_BY_PREFIX
    }


def _encoded_hold(hold: Hold | None, at: float) -> _Text:
    if hold is None:
        return _Text("", "", "", 0)
    held_ms = max(0, int((at - hold.since) * 1000))
    return _Text(hold.state.value, hold.note, hold.by, held_ms)


def _decode_hold(text: bytes, at: float) -> Hold | None:
    """Return a hold that was given at a moment; None for its end.

    Raises:
        msgspec.DecodeError: Nobody can read it.
        ValueError: It holds in a way that nobody knows.
    """
    said = msgspec.json.decode(text, type=_Text)
    if not said.state:
        return None
    return Hold(ReplicaState(said.state), said.note, at - said.held_ms / 1000, said.by)


def _is_said(instruction: Instruction, topic: Topic) -> bool:
    said = instruction.weight if topic is Topic.WEIGHT else instruction.hold
    return said is not None


def _apart_from_time(said: Instruction) -> tuple[object, ...]:
    hold = said.hold
    return (None if hold is None else (hold.state, hold.note, hold.by), said.weight)


def _nobody() -> None:
    """Nobody to wake before the exchange runs."""
