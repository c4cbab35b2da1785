"""What `make bench` shows and writes."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from loadtests.bench.figures import Row
from loadtests.bench.scenarios import MAX_EVENTS_PER_READ, Scenario

_NOTHING = "-"


def table(scenario: Scenario, rows: Sequence[Row], skipped: Mapping[str, str], ours: str) -> Table:
    """Return the table of one scenario.

    Args:
        scenario: What was sent.
        rows: The gateways that were measured.
        skipped: Reasons by gateway of those that were not.
        ours: The gateway that the goals are for.
    """
    result = Table(title=f"{scenario.name}: {_description(scenario)}", title_justify="left")
    result.add_column("gateway")
    headings = (f"CPU us/{scenario.unit}", "ratio", "goal", "requests/s", "p50 ms", "p99 ms")
    for heading in (*headings, "events/read", "errors"):
        result.add_column(heading, justify="right")
    for row in rows:
        goal = scenario.max_ratio if row.gateway == ours else None
        result.add_row(
            row.gateway,
            _text(row.cpu_us, ".1f"),
            _text(row.ratio, ".2f"),
            _NOTHING if goal is None else f"<= {goal}",
            _text(row.requests_per_s, ".0f"),
            _text(row.p50_ms, ".2f"),
            _text(row.p99_ms, ".2f"),
            _text(row.events_per_read, ".2f"),
            str(row.errors),
        )
    for gateway in skipped:
        result.add_row(gateway, "skipped")
    return result


def as_json(rows: Sequence[Row], skipped: Mapping[str, str]) -> Mapping[str, Any]:
    """Return everything that was measured, and on what."""
    return {
        "machine": {"system": platform.platform(), "python": platform.python_version()},
        "goals": {"max_events_per_read": MAX_EVENTS_PER_READ},
        "rows": [asdict(row) for row in rows],
        "skipped": dict(skipped),
    }


def _description(scenario: Scenario) -> str:
    kind = f"streams of {scenario.events} events" if scenario.events else "whole answers"
    num_bytes = scenario.body.stat().st_size
    return f"body of {num_bytes:,} bytes, {scenario.connections} connections, {kind}"


def _text(value: float | None, form: str) -> str:
    return _NOTHING if value is None else format(value, form)
