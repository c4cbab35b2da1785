"""The demo from start to end."""

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from rich.console import Console

from loadtests.demo import fleet, report
from loadtests.demo.driver import Tally, drive, tally_of
from loadtests.demo.figures import Figures, figures
from loadtests.measurement import Measurement, guarded
from loadtests.workloads import made, pace, replay
from loadtests.workloads.sessions import Session

POLICIES: Final = ("round_robin", "expected_ttft")
# Two passes, two starts and the last answers fit into 90 s on 2 cores.
DEFAULT_SECONDS: Final = 24.0
DEFAULT_SEED: Final = 1
_WATCH_INTERVAL_S: Final = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo, and return its exit code."""
    program = Measurement(
        "loadtests.demo",
        "Send the same traffic to 4 simulated replicas under round_robin and under expected_ttft, "
        "and compare them.",
    )
    add = program.options.add_argument
    add("--once", action="store_true", help="exit after the table")
    add("--trace", type=Path, help="replay these logs: a JSONL file or a folder")
    add(
        "--seconds",
        type=_seconds,
        default=DEFAULT_SECONDS,
        help=f"length of a pass, at least 5; the goals hold from {DEFAULT_SECONDS:g}, as in "
        "shorter ones most prompts meet cold caches",
    )
    add("--seed", type=int, default=DEFAULT_SEED, help="seed of the made traffic")
    add("--workers", type=int, default=1, help="processes of the gateway")
    options = program.options.parse_args(argv)
    return guarded(program.name, lambda: _run(program, options))


def _run(program: Measurement, options: argparse.Namespace) -> int:
    console = Console()
    sessions = _workload(options, console)
    num_blocks = fleet.SMALL_CACHE_BLOCKS if options.trace is None else None
    figures_by_policy: dict[str, Figures] = {}
    with ExitStack() as stack:
        for policy in POLICIES:
            stack.close()  # the pass before: replicas with its caches, a gateway with its index
            folder = options.json.parent / "demo" / policy
            by = f"a gateway of {options.workers} workers" if options.workers > 1 else "the gateway"
            console.print(f"{policy}: starting {fleet.NUM_REPLICAS} replicas and {by}")
            starting = fleet.running(policy, folder, num_blocks, options.workers)
            running = stack.enter_context(starting)
            tally = tally_of(sessions)
            asyncio.run(_pass(console, policy, sessions, running.url, tally))
            answers = [outcome.answer for outcome in tally.outcomes]
            figures_by_policy[policy] = figures(answers, fleet.NUM_REPLICAS)
            for line in (*report.failures(answers), *report.ended_children(running)):
                console.print(f"  {policy}: {line}", markup=False, highlight=False, soft_wrap=True)
        console.print(report.table(figures_by_policy))
        report.write_json(figures_by_policy, options.json)
        console.print(f"written to {options.json}", highlight=False, soft_wrap=True)
        baseline, ours = figures_by_policy.values()
        judged = options.trace is None and options.seconds >= DEFAULT_SECONDS
        code = program.judge(report.missed_goals(baseline, ours, full=judged))
        if not options.once:
            _stay(console, running)
    return code


def _workload(options: argparse.Namespace, console: Console) -> list[Session]:
    if options.trace is None:
        return made.workload(options.seed, options.seconds)
    log = replay.read(options.trace)
    chosen = pace.choose(
        log.sessions, options.seconds, fleet.NUM_REPLICAS, fleet.PREFILL_TOKENS_PER_S
    )
    sessions = replay.rescale(chosen.sessions, chosen.seconds)
    left_out = f"; {log.num_too_long} calls over the context window left out"
    console.print(
        f"{options.trace}: {sum(len(session.turns) for session in sessions)} of {log.num_calls} "
        f"calls, {len(sessions)} of {len(log.sessions)} sessions, in {chosen.seconds:.0f} s or "
        f"as fast as the answers allow{left_out if log.num_too_long else ''}",
        highlight=False,
        soft_wrap=True,
    )
    return sessions


async def _pass(
    console: Console, title: str, sessions: Sequence[Session], url: str, tally: Tally
) -> None:
    progress = asyncio.create_task(report.show_progress(console, title, tally))
    try:
        await drive(sessions, url, fleet.MODEL, tally)
    finally:
        progress.cancel()
        with suppress(asyncio.CancelledError):
            await progress


def _stay(console: Console, running: fleet.Fleet) -> None:
    """Leave the fleet up until Ctrl-C, and say when a process ends."""
    console.print("\nThe gateway is up, under expected_ttft. Try:\n")
    for line in report.curl_lines(running):
        # Not through rich: a wrapped line could not be pasted.
        print(f"  {line}\n")
    kill = " ".join(f"{child.name}={child.pid}" for child in running.replicas)
    print(f"Process ids, if you want to see one killed: {kill}. Ctrl-C ends everything.")
    seen: set[str] = set()
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(_WATCH_INTERVAL_S)
            for line in report.ended_children(running):
                if line not in seen:
                    seen.add(line)
                    print(line)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds >= 5:
        raise argparse.ArgumentTypeError("a pass takes at least 5 seconds")
    return seconds
