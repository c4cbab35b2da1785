"""The rolling measurement from start to end."""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console

from loadtests.children import Children
from loadtests.measurement import Measurement, Report
from loadtests.programs import environment
from loadtests.rolling.fleet import Fleet
from loadtests.rolling.scenarios import SCENARIOS

DEFAULT_RATE_PER_S: Final = 50.0
DEFAULT_REPLICAS: Final = 4
_TABLE_WIDTH: Final = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement, and return its exit code."""
    program = Measurement(
        "loadtests.rolling",
        "Replace replicas and gateways, and kill a replica, under traffic of which half are "
        "streams; count what clients noticed.",
    )
    add = program.options.add_argument
    add("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    add("--rate", type=float, default=DEFAULT_RATE_PER_S, help="requests a second")
    add("--replicas", type=int, default=DEFAULT_REPLICAS, help="at once; at least 2")
    return program.run(argv, lambda options, folder: asyncio.run(_measure(options, folder)))


async def _measure(options: argparse.Namespace, folder: Path) -> Report:
    console = Console(width=_TABLE_WIDTH)
    found = []
    with Children(environment(), folder) as children:
        fleet = Fleet(children)
        await fleet.start_replicas(options.replicas)
        for name in options.scenarios:
            scenario = await SCENARIOS[name](fleet, options.rate)
            console.print(scenario.table())
            found.append(scenario)
    missed = [line for scenario in found for line in scenario.missed()]
    return Report({"scenarios": [asdict(scenario) for scenario in found]}, missed)
