"""What several gateways have to show against one, and the table that shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from loadtests.demo.figures import Figures

# From the issue that asked for this.
MAX_LOST_HIT_RATIO: Final = 0.02
MAX_TTFT_RATIO: Final = 1.15
MAX_SKEW: Final = 1.7
# Above it the processes wait for cores, and what is measured is this machine.
MAX_CPU_SHARE: Final = 0.85


@dataclass(frozen=True, slots=True)
class Measured:
    """One set-up's figures over all its passes.

    Attributes:
        figures: As the clients saw it.
        cpu_share: Of all cores, while traffic ran; everybody's on this machine, not only ours.
        gateway_s: CPU seconds of all gateways.
        lookups: In the shared index, by how they ended.
    """

    figures: Figures
    cpu_share: float
    gateway_s: float
    lookups: Mapping[str, int]

    @property
    def unanswered(self) -> float:
        """Share of the look-ups that Redis did not answer in time."""
        total = sum(self.lookups.values())
        good = self.lookups.get("shared", 0) + self.lookups.get("local", 0)
        return (total - good) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of one gateway and of several, beside its goal."""

    what: str
    alone: str
    together: str
    goal: str = "-"
    met: bool = True


def lines(alone: Measured, together: Measured) -> list[Line]:
    """Return every figure with its goal."""
    one, many = alone.figures, together.figures
    lost = one.prefix_hit_ratio - many.prefix_hit_ratio
    ratio = many.ttft_mean_s / one.ttft_mean_s
    busiest = max(alone.cpu_share, together.cpu_share)
    return [
        Line(
            "prefix hit ratio",
            f"{one.prefix_hit_ratio:.3f}",
            f"{many.prefix_hit_ratio:.3f}",
            f"at most {MAX_LOST_HIT_RATIO} less",
            lost <= MAX_LOST_HIT_RATIO,
        ),
        Line(
            "TTFT mean, s",
            f"{one.ttft_mean_s:.3f}",
            f"{many.ttft_mean_s:.3f} ({ratio:.2f}x)",
            f"<= {MAX_TTFT_RATIO}x",
            ratio <= MAX_TTFT_RATIO,
        ),
        Line("TTFT p99, s", f"{one.ttft_p99_s:.3f}", f"{many.ttft_p99_s:.3f}"),
        Line(
            "skew (max / mean in flight)",
            f"{one.skew:.2f}",
            f"{many.skew:.2f}",
            f"<= {MAX_SKEW}",
            many.skew <= MAX_SKEW,
        ),
        Line("errors", str(one.errors), str(many.errors), "0", one.errors + many.errors == 0),
        Line("look-ups without an answer", f"{alone.unanswered:.3f}", f"{together.unanswered:.3f}"),
        Line("CPU of the gateways, s", f"{alone.gateway_s:.1f}", f"{together.gateway_s:.1f}"),
        Line(
            "CPU of the machine, share",
            f"{alone.cpu_share:.2f}",
            f"{together.cpu_share:.2f}",
            f"<= {MAX_CPU_SHARE}, or this measures the machine",
            busiest <= MAX_CPU_SHARE,
        ),
    ]


def table(title: str, found: Sequence[Line], num_gateways: int) -> Table:
    """Return the table for people."""
    shown = Table("", "1 gateway", f"{num_gateways} gateways", "goal", "", title=title)
    for line in found:
        row = (line.what, line.alone, line.together, line.goal, "" if line.met else "MISSED")
        shown.add_row(*row)
    return shown


def missed(found: Sequence[Line]) -> list[str]:
    """Return a line for every goal that was missed."""
    return [
        f"{line.what}: {line.goal}; it was {line.together}, alone {line.alone}"
        for line in found
        if not line.met
    ]
