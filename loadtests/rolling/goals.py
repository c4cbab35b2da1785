"""What each scenario has to show, and the table that shows it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

from loadtests.rolling.traffic import Outcome, failures

# From the issue that asked for this: what operators were promised.
MAX_EJECT_S: Final = 1.0
MAX_BACK_S: Final = 5.0
MAX_NEW_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """One figure beside its goal.

    Attributes:
        what: In words.
        found: The figure, for people.
        goal: What was asked for; `-` for a figure without a goal.
        met: Whether it is.
    """

    what: str
    found: str
    goal: str = "-"
    met: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one scenario found."""

    title: str
    lines: Sequence[Line]


def none(what: str, number: int) -> Line:
    """Return a line for what must not happen."""
    return Line(what, str(number), "0", number == 0)


def at_most(what: str, found_s: float | None, most_s: float) -> Line:
    """Return a line for a time; None for what never came."""
    shown = "never" if found_s is None else f"{found_s:.2f} s"
    return Line(what, shown, f"<= {most_s:g} s", found_s is not None and found_s <= most_s)


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


def table(scenario: Scenario) -> Table:
    """Return a scenario's table."""
    shown = Table("", "", "goal", "", title=scenario.title, title_justify="left")
    for line in scenario.lines:
        shown.add_row(line.what, line.found, line.goal, "" if line.met else "MISSED")
    return shown


def missed(scenarios: Sequence[Scenario]) -> list[str]:
    """Return a line for every goal that was missed."""
    return [
        f"{scenario.title}: {line.what}: {line.found}, not {line.goal}"
        for scenario in scenarios
        for line in scenario.lines
        if not line.met
    ]


def write_json(scenarios: Sequence[Scenario], path: Path) -> None:
    """Write all figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"scenarios": [asdict(s) for s in scenarios], "missed": missed(scenarios)}
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
