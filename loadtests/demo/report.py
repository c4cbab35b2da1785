"""What the demo shows: progress while it runs, one table, the JSON file, and what to try next."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtests.demo.client import Answer
from loadtests.demo.driver import Tally
from loadtests.demo.figures import Figures
from loadtests.demo.fleet import MODEL, Fleet

# The goals of the made workload; `make demo` fails where one is missed.
MAX_TTFT_RATIO: Final = 0.5
MAX_SKEW: Final = 1.6
_BAR_INTERVAL_S: Final = 0.25
_LINE_INTERVAL_S: Final = 5.0


async def show_progress(console: Console, title: str, tally: Tally) -> None:
    """Show how far a run is until it is cancelled: a bar, or lines where there is no terminal."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LINE_INTERVAL_S)
            console.print(f"{title}: {_state(tally)}")
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task(title, total=tally.total, state="")
        try:
            while True:
                state = f"{tally.in_flight} in flight, {tally.failures} failed"
                progress.update(task, completed=len(tally.outcomes), state=state, refresh=True)
                await asyncio.sleep(_BAR_INTERVAL_S)
        finally:
            progress.update(task, completed=len(tally.outcomes), refresh=True)


def _state(tally: Tally) -> str:
    return (
        f"{len(tally.outcomes)} of {tally.total} requests answered, {tally.in_flight} in flight, "
        f"{tally.failures} failed"
    )


def table(figures_by_policy: Mapping[str, Figures]) -> Table:
    """Return the table of both passes, with the ratio of the second to the first."""
    result = Table(title="The same requests twice, measured at the client")
    result.add_column("")
    for policy in figures_by_policy:
        result.add_column(policy, justify="right")
    result.add_column("ratio", justify="right")
    for name, label, form in _ROWS:
        values = [asdict(item)[name] for item in figures_by_policy.values()]
        ratio = f"{values[-1] / values[0]:.2f}" if values[0] else ""
        result.add_row(label, *(format(value, form) for value in values), ratio)
    return result


_ROWS: Final = (
    ("ttft_p50_s", "TTFT p50, s", ".3f"),
    ("ttft_p90_s", "TTFT p90, s", ".3f"),
    ("ttft_p99_s", "TTFT p99, s", ".3f"),
    ("ttft_mean_s", "TTFT mean, s", ".3f"),
    ("prefix_hit_ratio", "prefix hit ratio", ".3f"),
    ("skew", "skew (max / mean in flight)", ".2f"),
    ("requests_per_s", "requests/s", ".2f"),
    ("errors", "errors", "d"),
)


def write_json(figures_by_policy: Mapping[str, Figures], path: Path) -> None:
    """Write the figures by policy; null where there was nothing to measure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        policy: {name: None if math.isnan(value) else value for name, value in asdict(item).items()}
        for policy, item in figures_by_policy.items()
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def missed_goals(baseline: Figures, ours: Figures, *, full: bool) -> list[str]:
    """Return a line for every goal that was missed.

    Args:
        baseline: Under round robin.
        ours: Under expected_ttft.
        full: Whether this was the made workload in its full length. Real logs and short runs have
            no goal but to be served.
    """
    missed = []
    errors = baseline.errors + ours.errors
    if errors:
        missed.append(f"no errors; {errors} requests failed")
    if full and not ours.ttft_mean_s <= MAX_TTFT_RATIO * baseline.ttft_mean_s:
        ratio = ours.ttft_mean_s / baseline.ttft_mean_s
        missed.append(f"mean TTFT at most {MAX_TTFT_RATIO} of round robin's; it was {ratio:.2f}")
    if full and not ours.skew <= MAX_SKEW:
        missed.append(f"skew at most {MAX_SKEW}; it was {ours.skew:.2f}")
    return missed


def failures(answers: Sequence[Answer]) -> list[str]:
    """Return a line for every way in which requests failed, with one example of each."""
    failed = [answer for answer in answers if answer.failure is not None]
    counts = Counter((answer.failure, answer.replica) for answer in failed)
    lines = []
    for (failure, replica), count in counts.most_common():
        example = next(
            answer.detail
            for answer in failed
            if answer.failure == failure and answer.replica == replica
        )
        lines.append(f"{count} x {failure}{f' on {replica}' if replica else ''}: {example}")
    return lines


def ended_children(fleet: Fleet) -> list[str]:
    """Return a line for every process of the fleet that ended by itself or was killed."""
    return [
        f"{child.name} (pid {child.pid}) ended with code {child.exit_code}; its log: {child.log}"
        for child in fleet.children.ended()
    ]


def curl_lines(fleet: Fleet) -> Sequence[str]:
    """Return three commands that show the gateway: a streaming chat, an explanation, metrics."""
    chat = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Which replica answers this question?"}],
        "max_tokens": 30,
        "stream": True,
    }
    send = f"-H 'Content-Type: application/json' -d '{json.dumps(chat)}'"
    return (
        f"curl -iN {fleet.url}/v1/chat/completions {send}",
        f"curl -s {fleet.admin_url}/admin/explain {send}",
        f"curl -s {fleet.admin_url}/metrics",
    )
