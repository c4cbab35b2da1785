"""The soak from start to end."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from loadtests.bench import native
from loadtests.bench.native import NativeError
from loadtests.demo.children import ChildError, exit_on_signals
from loadtests.demo.fleet import ROOT
from loadtests.soak import passes, report
from loadtests.soak.passes import Load

DEFAULT_STREAMS: Final = 1500
DEFAULT_SECONDS: Final = 20.0
# Twice what 1,500 streams need on both sides, and what many systems give a process by default.
OPEN_FILES: Final = (8192, 1024)
_TABLE_WIDTH: Final = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak.

    Returns:
        The exit code: 0, 1 where a goal was missed or something did not start, 130 on Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.soak",
        description="Many streams of 20 events/s at once through one gateway process: once with "
        "open files for all of them, once with too few.",
    )
    build = ROOT / "build"
    parser.add_argument("--streams", type=int, default=DEFAULT_STREAMS, help="at once")
    parser.add_argument("--seconds", type=float, default=DEFAULT_SECONDS, help="length of each")
    parser.add_argument("--open-files", type=int, nargs="+", default=OPEN_FILES, help="limits")
    parser.add_argument("--json", type=Path, default=build / "soak.json", help="for the figures")
    options = parser.parse_args(argv)
    exit_on_signals()
    try:
        load = Load(options.streams, options.seconds)
        return _run(load, options.open_files, options.json, build)
    except (ChildError, NativeError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(load: Load, limits: Sequence[int], json_path: Path, build: Path) -> int:
    console = Console(width=_TABLE_WIDTH)
    programs = native.build(build / "native")
    found, missed = [], []
    for open_files in limits:
        print(f"{load.streams} streams for {load.seconds:g} s, {open_files} open files", flush=True)
        result = passes.run(open_files, load, programs, json_path.parent / "soak")
        console.print(report.table(result))
        found.append(result)
        missed += report.missed_goals(result, load)
    report.write_json(found, missed, json_path)
    print(f"written to {json_path}")
    for line in missed:
        print(f"soak: goal: {line}", file=sys.stderr)
    return 1 if missed else 0
