"""What operators say to one gateway counts at all of them, and outlives them.

The last word counts. What was said while Redis was away is brought later, with its age, so that it
does not win over what was said after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from gateway.replicas.instructions import Instruction
from gateway.replicas.registry import Registry
from gateway.replicas.state import Hold, ReplicaState
from gateway.shared.ownership import Order
from routing.types import ReplicaId

# Of one tick; a gateway that comes back with more brings the rest with the next ones.
MAX_ORDERS = 64


class _Text(msgspec.Struct, array_like=True, frozen=True):
    """An instruction as it stands in Redis, beside the time when it was given.

    Gateways of all releases read it (gateway/redis/layout.py), so only its end may grow.

    Attributes:
        state: Of the hold; empty for none.
        held_ms: For how long it was held already when this was said.
    """

    state: str
    note: str
    by: str
    held_ms: int
    weight: float | None


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
        self._said_at: dict[ReplicaId, float] = {}
        self._heard_ms: dict[ReplicaId, int] = {}
        self._pending: dict[ReplicaId, _Pending] = {}
        self.wake: Callable[[], None] = _nobody
        """Called when there is something to bring."""
        registry.on_instruction = self._said

    def orders(self) -> list[Order]:
        """Return what has to be brought, oldest first."""
        now = self._now()
        return [
            Order(
                "hold", replica, max(0, int((now - at) * 1000)), self._text(replica, at, after_ms)
            )
            for replica, (at, after_ms) in list(self._pending.items())[:MAX_ORDERS]
        ]

    def brought(self, orders: list[Order]) -> None:
        """Note that orders were carried out, each by the age that it told."""
        for order in orders:
            said = self._pending.get(order.replica)
            if said is not None and self._text(order.replica, *said) == order.text:
                del self._pending[order.replica]

    def hear(
        self, rows: Mapping[ReplicaId, tuple[int, bytes]], server_ms: int, asked_at: float
    ) -> None:
        """Take the whole table of what operators said.

        Args:
            rows: By replica: when, in the server's ms, and what.
            server_ms: The server's time then.
            asked_at: When it was asked for, monotonic seconds.
        """
        now = self._now()
        for replica, (ms, text) in rows.items():
            at = now - max(0, server_ms - ms) / 1000
            known_ms, self._heard_ms[replica] = self._heard_ms.get(replica, 0), ms
            ours = self._pending.get(replica)
            if ours is not None and ours.at >= asked_at:
                self._pending[replica] = _Pending(ours.at, ms)
                continue  # said since then, so it is later than all of this
            if ours is not None and ours.at > at:
                continue  # later too, and on its way
            if ms < known_ms and ours is None and self._differs(replica, _decode(text, at)):
                # A word of a replica is never replaced by an earlier one but where the server lost
                # what it had acknowledged.
                self._pending[replica] = _Pending(self._said_at.get(replica, now), known_ms)
                continue
            self._pending.pop(replica, None)
            self._take(replica, at, text)
        for replica in self._registry.instructions.ids() - rows.keys() - self._pending.keys():
            # Nothing is ever taken out of the table but by its bound: it was lost.
            self._pending[replica] = _Pending(self._said_at.get(replica, now), 0)
        self._heard_ms = {r: ms for r, ms in self._heard_ms.items() if r in rows}

    def _said(self, replica: ReplicaId) -> None:
        now = self._said_at[replica] = self._now()
        self._pending[replica] = _Pending(now, self._heard_ms.get(replica, 0))
        self.wake()

    def _take(self, replica: ReplicaId, at: float, text: bytes) -> None:
        self._said_at[replica] = at
        instruction = _decode(text, at)
        if instruction is not None and self._differs(replica, instruction):
            self._registry.instructed(replica, instruction)
        if not self._registry.instructions.has(replica):
            self._said_at.pop(replica, None)

    def _differs(self, replica: ReplicaId, said: Instruction | None) -> bool:
        ours = self._registry.instructions.of(replica)
        return said is not None and _apart_from_time(said) != _apart_from_time(ours)

    def _text(self, replica: ReplicaId, at: float, after_ms: int) -> str:
        said = self._registry.instructions.of(replica)
        hold = said.hold
        text = _Text(
            state="" if hold is None else hold.state.value,
            note="" if hold is None else hold.note,
            by="" if hold is None else hold.by,
            held_ms=0 if hold is None else max(0, int((at - hold.since) * 1000)),
            weight=said.weight,
        )
        return f"{after_ms} {msgspec.json.encode(text).decode()}"


def _decode(text: bytes, at: float) -> Instruction | None:
    """Return what was said at a moment; None for what nobody can read."""
    try:
        said = msgspec.json.decode(text, type=_Text)
        state = ReplicaState(said.state) if said.state else None
    except (msgspec.DecodeError, ValueError):
        return None
    hold = None
    if state is not None:
        hold = Hold(state, said.note, at - said.held_ms / 1000, said.by)
    return Instruction(hold, said.weight)


def _apart_from_time(said: Instruction) -> tuple[object, ...]:
    hold = said.hold
    return (None if hold is None else (hold.state, hold.note, hold.by), said.weight)


def _nobody() -> None:
    """Nobody to wake before the exchange runs."""
