"""The soak from start to end."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console

from loadtests.bench import native
from loadtests.measurement import BUILD, Measurement, Report
from loadtests.soak import passes, report
from loadtests.soak.passes import Load

DEFAULT_STREAMS: Final = 1500
DEFAULT_SECONDS: Final = 20.0
# Twice what 1,500 streams need on both sides, and what many systems give a process by default.
OPEN_FILES: Final = (8192, 1024)
_TABLE_WIDTH: Final = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak, and return its exit code."""
    program = Measurement(
        "loadtests.soak",
        "Many streams of 20 events/s at once through one gateway process: once with open files "
        "for all of them, once with too few.",
    )
    add = program.options.add_argument
    add("--streams", type=int, default=DEFAULT_STREAMS, help="at once")
    add("--seconds", type=float, default=DEFAULT_SECONDS, help="length of each")
    add("--open-files", type=int, nargs="+", default=OPEN_FILES, help="limits")
    return program.run(argv, _measure)


def _measure(options: argparse.Namespace, folder: Path) -> Report:
    console = Console(width=_TABLE_WIDTH)
    programs = native.build(BUILD / "native")
    load = Load(options.streams, options.seconds)
    found, missed = [], []
    for open_files in options.open_files:
        print(f"{load.streams} streams for {load.seconds:g} s, {open_files} open files", flush=True)
        result = passes.run(open_files, load, programs, folder)
        console.print(report.table(result))
        found.append(result)
        missed += report.missed_goals(result, load)
    return Report({"passes": [asdict(result) for result in found]}, missed)
