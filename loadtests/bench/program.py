"""The bench from start to end."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from loadtests.bench import gateways, native, report
from loadtests.bench.figures import Row, missed_goals, rows
from loadtests.bench.gateways import BASELINE, KINDS, OURS, Running
from loadtests.bench.measure import Sample, measure
from loadtests.bench.native import NativeError, Programs
from loadtests.bench.peers import PeerMissing
from loadtests.bench.scenarios import SCENARIOS, Scenario
from loadtests.demo.children import ChildError, Children, exit_on_signals
from loadtests.demo.fleet import ROOT

BUILD: Final = ROOT / "build"
DEFAULT_SCENARIOS: Final = "short,8k,64k,s64p"
# Short runs in several rounds meet the same moods of a shared machine for every gateway.
DEFAULT_ROUNDS: Final = 3
DEFAULT_SECONDS: Final = 1.3
_WARM_UP_S: Final = 0.5
_TABLE_WIDTH: Final = 120  # characters; a narrower table would break its figures over lines


@dataclass(frozen=True, slots=True)
class Options:
    """The command line: see `parse`."""

    scenarios: Sequence[Scenario]
    rounds: int
    seconds: float
    only: str
    json: Path


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; argparse ends the program on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench",
        description="CPU seconds of a gateway's whole process tree per request and per streamed "
        "event, interleaved with its peers. Peers are installed into build/peers once.",
    )
    parser.add_argument("--scenarios", type=_scenarios, default=_scenarios(DEFAULT_SCENARIOS))
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="runs of each scenario")
    parser.add_argument("--seconds", type=float, default=DEFAULT_SECONDS, help="length of a run")
    parser.add_argument("--only", default="", help="gateways whose name contains this")
    parser.add_argument("--json", type=Path, default=BUILD / "bench.json", help="for the figures")
    return Options(**vars(parser.parse_args(argv)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench.

    Returns:
        The exit code: 0, 1 where a goal was missed or something did not start, 130 on Ctrl-C.
    """
    options = parse(argv)
    exit_on_signals()
    try:
        return _run(options, Console(width=_TABLE_WIDTH))
    except (ChildError, NativeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: Options, console: Console) -> int:
    programs = native.build(BUILD / "native")
    folder = options.json.parent / "bench"
    skipped: dict[str, str] = {}
    with Children(gateways.environment(()), folder) as mocks:
        mock_urls = gateways.start_mocks(mocks, programs)
        with Children(gateways.environment(mock_urls), folder) as children:
            running = _start(children, options.only, mock_urls, skipped)
            found = _measure_all(options, running, programs, mock_urls)
    measured: list[Row] = []
    for scenario in options.scenarios:
        samples = {gateway.name: found[scenario.name, gateway.name] for gateway in running}
        scenario_rows = rows(scenario, samples, BASELINE)
        measured += scenario_rows
        console.print(report.table(scenario, scenario_rows, skipped, OURS))
    missed = [
        line
        for row in measured
        if row.gateway == OURS
        for line in missed_goals(row, SCENARIOS[row.scenario])
    ]
    report.write_json(measured, skipped, missed, options.json)
    print(f"written to {options.json}")
    for name, reason in skipped.items():
        judged = "; the ratios are not judged" if name == BASELINE else ""
        print(f"skipped: {name} {reason}{judged}")
    for line in missed:
        print(f"bench: goal: {line}", file=sys.stderr)
    return 1 if missed else 0


def _start(
    children: Children, only: str, mock_urls: Sequence[str], skipped: dict[str, str]
) -> list[Running]:
    """Start every gateway that can be; those that cannot go into `skipped` with the reason."""
    running = []
    for kind in KINDS:
        if only not in kind.name:
            continue
        print(f"starting {kind.name}", flush=True)
        try:
            running.append(gateways.start(kind, children, mock_urls, BUILD / "peers"))
        except PeerMissing as reason:
            skipped[kind.name] = str(reason)
    return running


def _measure_all(
    options: Options, running: Sequence[Running], programs: Programs, mock_urls: Sequence[str]
) -> dict[tuple[str, str], list[Sample]]:
    """Return the samples by scenario and gateway, one a round, gateways interleaved."""
    for gateway in running:
        for name in ("short", "s64"):
            measure(gateway, SCENARIOS[name], _WARM_UP_S, programs, mock_urls)
    samples: dict[tuple[str, str], list[Sample]] = {}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for scenario in options.scenarios:
            # Every other round backwards, so that nobody always runs behind the same neighbour.
            for gateway in running[:: -1 if number % 2 else 1]:
                sample = measure(gateway, scenario, options.seconds, programs, mock_urls)
                samples.setdefault((scenario.name, gateway.name), []).append(sample)
    return samples


def _scenarios(text: str) -> Sequence[Scenario]:
    try:
        return [SCENARIOS[name] for name in text.split(",")]
    except KeyError as error:
        known = ", ".join(SCENARIOS)
        raise argparse.ArgumentTypeError(f"no scenario {error}; there are {known}") from None
