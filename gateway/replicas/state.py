"""The states of a replica, and the one rule that says which of them it is in. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ELSEWHERE = "ejected_elsewhere"
"""A fault that other gateways saw, and not this one."""


class ReplicaState(StrEnum):
    """Whether a replica may get requests."""

    STARTING = "starting"  # it was never ready since it joined
    READY = "ready"
    CORDONED = "cordoned"  # an operator wants no new requests there; its sessions stay
    DRAINING = "draining"  # it is leaving, by an operator's wish or its platform's
    EJECTED = "ejected"  # it was ready and does not answer
    GONE = "gone"  # no discovery names it any more


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's wish that a replica gets no new requests.

    Attributes:
        state: CORDONED or DRAINING.
        note: Why, in the operator's words; empty where none were given.
        since: When it was given, monotonic seconds.
        by: The gateway that it was given to; empty where there is one only.
    """

    state: ReplicaState
    note: str
    since: float
    by: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """A state, and why, in one word of ours for metrics and logs."""

    state: ReplicaState
    reason: str


def standing(
    *, known: bool, hold: Hold | None, wanted: bool, was_ready: bool, fault: str | None
) -> Standing:
    """Return the state that follows from what operator, platform and probes say.

    People come first, then the platform, then what we see for ourselves: what is held and dies is
    still shown as held, so that nobody takes it for one that will come back by itself. Its fault
    is told beside the state.

    Args:
        known: Whether a discovery names it.
        hold: The operator's wish.
        wanted: Whether its platform wants requests there.
        was_ready: Whether it was ready since it joined.
        fault: Why it does not answer, in one word; None where it does.
    """
    if not known:
        return Standing(ReplicaState.GONE, "not_discovered")
    if hold is not None:
        return Standing(hold.state, "operator")
    if not was_ready and (fault is not None or not wanted):
        return Standing(ReplicaState.STARTING, fault or "platform")
    if not wanted:
        return Standing(ReplicaState.DRAINING, "platform")
    if fault is not None:
        return Standing(ReplicaState.EJECTED, fault)
    return Standing(ReplicaState.READY, "healthy")
