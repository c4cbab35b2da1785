"""What is tried with the fleet, part after part; each says what it saw."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

from loadtests.conformance.cases import CHAT
from loadtests.conformance.fleet import FEW_BLOCKS, Fleet
from loadtests.conformance.observe import Seen
from loadtests.conformance.traffic import TURNS, conversations, document

# From the issue that asked for this.
OUTAGE_S: Final = 30.0
# Asked after each disturbance: "right again within two" shows at the second, the others confirm it.
_ASKED_AFTER: Final = 4
# 7 documents of 47 blocks: twice what the small cache holds.
_NUM_DOCUMENTS: Final = 7
# Enough for several prefills of one prompt in the same step of the engine.
_AT_ONCE: Final = 4
_WAVES: Final = 3
_KEPT_AWAY: Final = "events were kept away"
# A quiet moment between two turns, as a person's or a tool's; events need some milliseconds.
_BETWEEN_S: Final = 0.2


def talk(fleet: Fleet) -> Iterator[Seen]:
    """Hold all conversations at once, turn by turn, on both replicas."""
    talks = conversations()
    for _turn in range(TURNS):
        for conversation in talks:
            yield fleet.observer.converse("conversations", conversation)
            time.sleep(_BETWEEN_S)


def reset(fleet: Fleet) -> Iterator[Seen]:
    """Clear the cache of replica "b", which tells nobody until its next step."""
    fleet.only("b")
    yield from _ask(fleet, "reset: before", 20)
    fleet.engines["b"].reset_prefix_cache()
    yield from _again(fleet, "reset", 20, "cleared while idle, not told yet")


def together(fleet: Fleet) -> Iterator[Seen]:
    """Ask replica "b" several questions about one new document at once, some times."""
    fleet.only("b")
    for number in range(50, 50 + _WAVES):
        questions = range(_AT_ONCE)
        with ThreadPoolExecutor(_AT_ONCE) as executor:
            ask = partial(fleet.observer.ask, "together: meanwhile", f"document {number}", CHAT)
            bodies = [document(number, question) for question in questions]
            for seen in executor.map(ask, bodies):
                yield _excused(seen, "computed at the same time")
    for number in range(50, 50 + _WAVES):
        yield from _ask(fleet, "together", number)


def outage(fleet: Fleet) -> Iterator[Seen]:
    """Keep replica "a"'s events away for half a minute, under traffic."""
    fleet.only("a")
    yield from _ask(fleet, "outage: before", 30)
    fleet.cut_events()
    began = time.monotonic()
    number = 31
    while time.monotonic() - began < OUTAGE_S:
        for seen in _ask(fleet, "outage: meanwhile", number):
            yield _excused(seen, _KEPT_AWAY)
        number += 1
        time.sleep(OUTAGE_S / 10)
    fleet.mend_events()
    yield from _again(fleet, "outage", 31, _KEPT_AWAY)


def restart(fleet: Fleet) -> Iterator[Seen]:
    """Restart replica "a" with a small cache."""
    fleet.only("a")
    yield from _ask(fleet, "restart: before", 31)
    fleet.restart("a", FEW_BLOCKS)
    yield from _again(fleet, "restart", 31, "restarted")


def evict(fleet: Fleet) -> Iterator[Seen]:
    """Ask for more documents than replica "a"'s small cache holds, then for them again."""
    fleet.only("a")
    there = list(range(40, 40 + _NUM_DOCUMENTS))
    # Backwards, the last ones are whole, one lost its end, and each further one displaces another.
    for number in [*there, *reversed(there), *there[:3]]:
        yield from _ask(fleet, "eviction", number)


def _again(fleet: Fleet, stage: str, number: int, first_cause: str) -> Iterator[Seen]:
    """Ask two documents twice each; only the first request has an excuse."""
    excuse = first_cause
    for offset in range(_ASKED_AFTER):
        for seen in _ask(fleet, stage, number + offset // 2):
            yield _excused(seen, excuse)
        excuse = ""


def _excused(seen: Seen, cause: str) -> Seen:
    """Return a request with this cause of its difference, if it has one and this is not empty."""
    return replace(seen, cause=cause) if cause and seen.cause else seen


def _ask(fleet: Fleet, stage: str, number: int) -> Iterator[Seen]:
    yield fleet.observer.ask(stage, f"document {number}", CHAT, document(number))
    time.sleep(_BETWEEN_S)


ALL: Final = (talk, reset, together, outage, restart, evict)
"""Every part, in the order in which they run."""
