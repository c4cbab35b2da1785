"""Figures beside their goals, for people."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


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
class Findings:
    """What one measurement, or one part of it, found."""

    title: str
    lines: Sequence[Line]

    def table(self) -> Table:
        """Return the figures with the goals beside them."""
        shown = Table("", "", "goal", "", title=self.title, title_justify="left")
        for line in self.lines:
            shown.add_row(line.what, line.found, line.goal, "" if line.met else "MISSED")
        return shown

    def missed(self) -> list[str]:
        """Return a line for every goal that was missed."""
        return [
            f"{self.title}: {line.what}: {line.found}, not {line.goal}"
            for line in self.lines
            if not line.met
        ]


def none(what: str, number: int) -> Line:
    """Return a line for what must not happen."""
    return Line(what, str(number), "0", number == 0)


def at_most(
    what: str, found: float | None, most: float, unit: str = "s", form: str = ".2f"
) -> Line:
    """Return a line for what must not be more.

    Args:
        what: In words.
        found: The figure; None for a time that never came.
        most: The goal.
        unit: Of both.
        form: How the figure is shown, as `format` has it.
    """
    shown = "never" if found is None else f"{found:{form}} {unit}"
    return Line(what, shown, f"<= {most:g} {unit}", found is not None and found <= most)
