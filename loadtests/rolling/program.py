"""The rolling measurement from start to end."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from loadtests.demo.children import ChildError, Children, exit_on_signals
from loadtests.demo.fleet import ROOT, environment
from loadtests.rolling import goals
from loadtests.rolling.fleet import Fleet
from loadtests.rolling.goals import Scenario
from loadtests.rolling.scenarios import SCENARIOS

DEFAULT_RATE_PER_S: Final = 50.0
DEFAULT_REPLICAS: Final = 4
_TABLE_WIDTH: Final = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement.

    Returns:
        The exit code: 0, 1 where a goal was missed or something did not start, 130 on Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.rolling",
        description="Replace replicas and gateways, and kill a replica, under traffic of which "
        "half are streams; count what clients noticed.",
    )
    build = ROOT / "build"
    add = parser.add_argument
    add("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    add("--rate", type=float, default=DEFAULT_RATE_PER_S, help="requests a second")
    add("--replicas", type=int, default=DEFAULT_REPLICAS, help="at once; at least 2")
    add("--json", type=Path, default=build / "rolling.json", help="for the figures")
    options = parser.parse_args(argv)
    exit_on_signals()
    folder = options.json.parent / "rolling"
    try:
        found = asyncio.run(_run(options.scenarios, options.rate, options.replicas, folder))
    except ChildError as error:
        print(f"rolling: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    goals.write_json(found, options.json)
    print(f"written to {options.json}")
    missed = goals.missed(found)
    for line in missed:
        print(f"rolling: goal: {line}", file=sys.stderr)
    return 1 if missed else 0


async def _run(
    names: Sequence[str], rate_per_s: float, num_replicas: int, folder: Path
) -> list[Scenario]:
    console = Console(width=_TABLE_WIDTH)
    found = []
    with Children(environment(), folder) as children:
        fleet = Fleet(children, folder)
        await fleet.start_replicas(num_replicas)
        for name in names:
            scenario = await SCENARIOS[name](fleet, rate_per_s)
            console.print(goals.table(scenario))
            found.append(scenario)
    return found
