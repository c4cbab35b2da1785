"""The measurement from start to end."""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from loadtests.measurement import Measurement, Report
from loadtests.tiers import report
from loadtests.tiers.fit import Line, fit, fit_latency
from loadtests.tiers.goals import Figure, Measured, figures, loadable_tokens, missed_goals
from loadtests.tiers.plot import svg
from loadtests.tiers.processes import running
from loadtests.tiers.published import LOADED_S, LOADED_TOKENS
from loadtests.tiers.sweep import (
    CONCURRENCIES,
    LENGTHS,
    Cell,
    Way,
    break_even,
    cell,
    chats,
    prompts_of_clients,
)
from loadtests.tiers.virtual import prompts
from routing.lab.engine_profile import A10G, EngineProfile

# Chats by one client, by some and by many.
_CHATS_AT_ONCE: Final = (1, 8, 64)
# With processes: tokens, clients and requests of each. 64 clients are a burst: a second request of
# each would take another minute.
_IN_PROCESSES: Final[Sequence[tuple[int, int, int]]] = (
    *((length, 1, 5) for length in LENGTHS if length >= 500),
    *((report.SHOWN_TOKENS, clients, each) for clients, each in ((4, 2), (16, 2), (64, 1))),
)
_WARM_UP_REQUESTS: Final = 3
_TABLE_WIDTH: Final = 120


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement, and return its exit code."""
    program = Measurement(
        "loadtests.tiers",
        "TTFT with and without L2 by prompt length and clients at once, on simulated replicas "
        "with an A10G's times, beside what was published of it. Draws an SVG beside the figures.",
    )
    add = program.options.add_argument
    add("--virtual", action="store_true", help="without processes: some seconds")
    return program.run(argv, _report)


def _report(options: argparse.Namespace, folder: Path) -> Report:
    found = measure(folder, virtual_only=options.virtual)
    console = Console(width=_TABLE_WIDTH)
    for table in report.tables(found):
        console.print(table)
    drawn: Path = options.json.with_suffix(".svg")
    drawn.parent.mkdir(parents=True, exist_ok=True)
    drawn.write_text(svg(report.charts(found)), encoding="utf-8")
    print(f"drawn to {drawn}")
    return Report(_figures_of(found), missed_goals(found))


def measure(folder: Path, *, virtual_only: bool = False) -> Measured:
    """Measure everything.

    Args:
        folder: For logs and the replicas' directory.
        virtual_only: Whether to leave out the processes.

    Raises:
        ChildError: A process did not start, or failed a request.
    """
    began = time.monotonic()
    profile = A10G
    other_line = fit_latency(profile, LOADED_S / LOADED_TOKENS)
    cells = [cell(profile, length, clients) for clients in CONCURRENCIES for length in LENGTHS]
    found_chats = {clients: chats(profile, clients) for clients in _CHATS_AT_ONCE}
    print(f"virtual time took {time.monotonic() - began:.0f} s", flush=True)
    tried = [] if virtual_only else _IN_PROCESSES
    processes = _in_processes(profile, folder, tried) if tried else []
    return Measured(
        line=fit(profile),
        figures=figures(cells),
        other_line=other_line,
        other_figures=_figures_with(other_line, profile),
        cells=cells,
        chats=found_chats,
        processes=[one for one, _ in processes],
        virtual=[cell(profile, *sizes) for sizes in tried],
        wrongly_served=sum(tokens for _, tokens in processes),
        total_s=time.monotonic() - began,
    )


def _figures_with(line: Line, profile: EngineProfile) -> list[Figure]:
    on_it = line.on(profile)
    return figures([cell(on_it, length, 1, requests_each=1) for length in LENGTHS], goals=())


def _in_processes(
    profile: EngineProfile, folder: Path, tried: Sequence[tuple[int, int, int]]
) -> list[tuple[Cell, int]]:
    """Return the times of processes, and the prompt tokens that came from elsewhere than meant."""
    found, first = [], _WARM_UP_REQUESTS
    with running(profile, folder) as fleet:
        fleet.warm_up(prompts(_WARM_UP_REQUESTS, LENGTHS[0]))
        for length, clients, each in tried:
            # No replica may have seen a prompt before.
            asked = prompts_of_clients(length, clients, each, first)
            first += clients * each
            fleet.write([prompt for client in asked for prompt in client])
            served = {way: fleet.ask(way, asked) for way in Way}
            ttft_s = {way: one.ttft_s for way, one in served.items()}
            e2e_s = {way: one.e2e_s for way, one in served.items()}
            loadable = loadable_tokens(length) * clients * each
            meant = {way: 0 if way is Way.COLD else loadable for way in Way}
            wrong = sum(abs(meant[way] - one.cached_tokens) for way, one in served.items())
            found.append((Cell(length, clients, ttft_s, e2e_s), wrong))
            times = ", ".join(f"{way} {1e3 * seconds:,.0f} ms" for way, seconds in ttft_s.items())
            print(f"processes: {clients:2} clients, {length:,} tokens: {times}", flush=True)
    return found


def _figures_of(found: Measured) -> Mapping[str, Any]:
    by_clients = {
        clients: [one for one in found.cells if one.clients == clients] for clients in CONCURRENCIES
    }
    return {
        "cores": os.cpu_count(),
        "total_s": round(found.total_s, 1),
        "fit": {**asdict(found.line), "bytes_s": found.line.bytes_s},
        "published": [{**asdict(one), "error": one.error} for one in found.figures],
        "published_with_g6e_token_time": [asdict(one) for one in found.other_figures],
        "sweep": report.as_json(found.cells),
        "break_even_tokens": {
            clients: {
                f"{way.name.lower()}_{'e2e' if whole else 'ttft'}": break_even(
                    row, way, whole=whole
                )
                for way in (Way.IN_TURN, Way.AT_ONCE)
                for whole in (False, True)
            }
            for clients, row in by_clients.items()
        },
        "chats": {
            clients: [asdict(turn) for turn in turns] for clients, turns in found.chats.items()
        },
        "processes": report.as_json(found.processes),
    }
