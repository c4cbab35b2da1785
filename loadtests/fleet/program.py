"""The fleet measurement from start to end."""

import argparse
import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console

from loadtests.demo.client import Answer
from loadtests.demo.driver import drive, tally_of
from loadtests.demo.figures import figures
from loadtests.demo.fleet import MODEL
from loadtests.demo.report import failures
from loadtests.fleet import goals
from loadtests.fleet.goals import Measured
from loadtests.fleet.processes import NUM_REPLICAS, SPEED, Pass, num_lookups, running
from loadtests.measurement import Measurement, Report
from loadtests.usage import cpu_s
from loadtests.workloads import made

DEFAULT_GATEWAYS: Final = 4
# One pass is some 400 requests, whose mean TTFT varies by a tenth from pass to pass: the same
# traffic meets other moments. Four passes each, taken in turns, halve that.
DEFAULT_ROUNDS: Final = 4
DEFAULT_SECONDS: Final = 30.0
DEFAULT_SEED: Final = 1
_TABLE_WIDTH: Final = 110


@dataclass(slots=True)
class _Sums:
    """What the passes of one set-up found so far."""

    answers: list[Answer] = field(default_factory=list)
    busy_s: float = 0.0
    length_s: float = 0.0
    gateway_s: float = 0.0
    lookups: Counter[str] = field(default_factory=Counter)

    def measured(self) -> Measured:
        share = self.busy_s / (self.length_s * (os.cpu_count() or 1))
        found = figures(self.answers, NUM_REPLICAS)
        return Measured(found, share, self.gateway_s, dict(self.lookups))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement, and return its exit code."""
    program = Measurement(
        "loadtests.fleet",
        "Send the demo's traffic to 8 simulated replicas through one gateway and through several "
        "behind a round-robin TCP balancer, and compare.",
    )
    add = program.options.add_argument
    add("--gateways", type=int, default=DEFAULT_GATEWAYS, help="that share one Redis; at least 2")
    add("--rounds", type=int, default=DEFAULT_ROUNDS, help="passes of each set-up, in turns")
    add("--seconds", type=float, default=DEFAULT_SECONDS, help="length of a pass")
    add("--seed", type=int, default=DEFAULT_SEED, help="of the traffic")
    return program.run(argv, lambda options, folder: asyncio.run(_measure(options, folder)))


async def _measure(options: argparse.Namespace, folder: Path) -> Report:
    console = Console(width=_TABLE_WIDTH)
    sums = {1: _Sums(), options.gateways: _Sums()}
    for number in range(options.rounds):
        # The second round the other way round: what the machine does beside this favours nobody.
        for num_gateways in sorted(sums, reverse=number % 2 == 1):
            console.print(f"round {number + 1}: {num_gateways} gateways, {NUM_REPLICAS} replicas")
            async with running(num_gateways, folder / f"{number + 1}-{num_gateways}") as started:
                await _pass(started, options, sums[num_gateways], console)
    alone, together = sums[1].measured(), sums[options.gateways].measured()
    found = goals.lines(alone, together)
    title = f"The same requests, {options.rounds} passes of {options.seconds:g} s each"
    console.print(goals.table(title, found, options.gateways))
    console.print(
        f"Replicas compute at {SPEED:g} of an A10G's speed, so that {NUM_REPLICAS} of them are as "
        "busy as the demo's 4 are, at rates that these cores carry.",
    )
    setting = {"gateways": options.gateways, "replicas": NUM_REPLICAS, "speed": SPEED}
    setting |= {"rounds": options.rounds, "seconds": options.seconds, "seed": options.seed}
    figures_of = {"one_gateway": asdict(alone), "gateways": asdict(together)}
    return Report({"setting": setting, **figures_of}, goals.missed(found))


async def _pass(started: Pass, options: argparse.Namespace, sums: _Sums, console: Console) -> None:
    sessions = made.workload(options.seed, options.seconds)
    tally = tally_of(sessions)
    gateways_before = sum(cpu_s([gateway.pid]) for gateway in started.gateways)
    busy_before, began = _busy_s(), time.monotonic()
    await drive(sessions, started.url, MODEL, tally)
    sums.busy_s += _busy_s() - busy_before
    sums.length_s += time.monotonic() - began
    sums.gateway_s += sum(cpu_s([gateway.pid]) for gateway in started.gateways) - gateways_before
    sums.lookups += num_lookups(started.admin_urls)
    answers = [outcome.answer for outcome in tally.outcomes]
    sums.answers += answers
    for line in failures(answers):
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _busy_s() -> float:
    """Return the CPU seconds of this machine, all cores, that were not idle."""
    first = Path("/proc/stat").read_text("utf-8").splitlines()[0].split()
    ticks = [int(word) for word in first[1:9]]  # user nice system idle iowait irq softirq steal
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
