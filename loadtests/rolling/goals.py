"""What each scenario has to show."""

from collections.abc import Sequence
from typing import Final

from loadtests.goals import Line, none
from loadtests.rolling.traffic import Outcome, failures

# From the issue that asked for this: what operators were promised.
MAX_EJECT_S: Final = 1.0
MAX_BACK_S: Final = 5.0
MAX_NEW_S: Final = 2.0


def unharmed(outcomes: Sequence[Outcome]) -> list[Line]:
    """Return the lines of a scenario in which no request may fail."""
    failed = failures(outcomes)
    details = sorted({outcome.answer.detail for outcome in failed})
    return [
        sent(outcomes),
        none("failed requests", sum(not outcome.stream for outcome in failed)),
        none("failed or broken streams", sum(outcome.stream for outcome in failed)),
        *(Line("  failure", detail) for detail in details),
    ]


def sent(outcomes: Sequence[Outcome]) -> Line:
    """Return how much traffic there was; without any nothing would be shown."""
    streams = sum(outcome.stream for outcome in outcomes)
    shown = f"{len(outcomes)}, {streams} of them streams"
    return Line("requests", shown, "> 0", 0 < streams < len(outcomes))
