"""The bench from start to end."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from loadtests.bench import gateways, native, report
from loadtests.bench.figures import Row, missed_goals, rows
from loadtests.bench.gateways import BASELINE, KINDS, OURS, Running
from loadtests.bench.measure import Sample, measure
from loadtests.bench.native import Programs
from loadtests.bench.peers import PeerMissing
from loadtests.bench.scenarios import SCENARIOS, Scenario
from loadtests.children import Children
from loadtests.measurement import BUILD, Measurement, Report

DEFAULT_SCENARIOS: Final = "short,8k,64k,s64p"
# Short runs in several rounds meet the same moods of a shared machine for every gateway.
DEFAULT_ROUNDS: Final = 3
DEFAULT_SECONDS: Final = 1.3
_WARM_UP_S: Final = 0.5
_TABLE_WIDTH: Final = 120  # characters; a narrower table would break its figures over lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench, and return its exit code."""
    program = Measurement(
        "loadtests.bench",
        "CPU seconds of a gateway's whole process tree per request and per streamed event, "
        "interleaved with its peers. Peers are installed into build/peers once.",
    )
    add = program.options.add_argument
    add("--scenarios", type=_scenarios, default=_scenarios(DEFAULT_SCENARIOS))
    add("--rounds", type=int, default=DEFAULT_ROUNDS, help="runs of each scenario")
    add("--seconds", type=float, default=DEFAULT_SECONDS, help="length of a run")
    add("--only", default="", help="gateways whose name contains this")
    return program.run(argv, _report)


def _report(options: argparse.Namespace, folder: Path) -> Report:
    console = Console(width=_TABLE_WIDTH)
    programs = native.build(BUILD / "native")
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
    for name, reason in skipped.items():
        judged = "; the ratios are not judged" if name == BASELINE else ""
        print(f"skipped: {name} {reason}{judged}")
    missed = [
        line
        for row in measured
        if row.gateway == OURS
        for line in missed_goals(row, SCENARIOS[row.scenario])
    ]
    return Report(report.as_json(measured, skipped), missed)


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
    options: argparse.Namespace,
    running: Sequence[Running],
    programs: Programs,
    mock_urls: Sequence[str],
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
