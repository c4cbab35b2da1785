"""Ratios, goals and the table, from literal samples."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from loadtests.bench import report
from loadtests.bench.figures import Row, cost_us, missed_goals, ratio, rows
from loadtests.bench.measure import Sample
from loadtests.bench.scenarios import SCENARIOS

SHORT, STREAM = SCENARIOS["short"], SCENARIOS["s64p"]
# 0.1 s of CPU for 1,000 requests: 100 us each.
SAMPLE = Sample(
    done=1000, errors=0, events=0, reads=1500, cpu_s=0.1, seconds=2.0, p50_s=0.001, p99_s=0.004
)
ROW = Row("short", "ours", 200.0, 2.0, 500.0, 1.0, 4.0, None, 0)


def test_cost_is_per_request_and_for_streams_per_event():
    assert cost_us(SAMPLE, SHORT) == pytest.approx(100.0)
    assert cost_us(replace(SAMPLE, events=66_000), STREAM) == pytest.approx(0.1e6 / 66_000)
    assert cost_us(replace(SAMPLE, done=0), SHORT) is None


def test_the_ratio_is_the_median_of_rounds_compared_one_by_one():
    baseline = [replace(SAMPLE, cpu_s=cpu) for cpu in (0.1, 0.2, 0.4)]
    ours = [replace(SAMPLE, cpu_s=cpu) for cpu in (0.2, 0.3, 2.0)]
    # 2.0, 1.5 and 5.0; the ratio of the medians would be 1.5.
    assert ratio(ours, baseline, SHORT) == pytest.approx(2.0)


def test_a_round_without_an_answer_is_left_out_of_the_ratio():
    empty = replace(SAMPLE, done=0)
    assert ratio([SAMPLE, SAMPLE], [empty, SAMPLE], SHORT) == pytest.approx(1.0)
    assert ratio([SAMPLE], [empty], SHORT) is None
    assert ratio([SAMPLE], [], SHORT) is None


def test_a_row_holds_medians_and_the_sum_of_errors():
    stream = replace(SAMPLE, done=100, events=6600, reads=6600, errors=1)
    slower = replace(stream, cpu_s=0.3, p50_s=0.003)
    (row,) = rows(STREAM, {"ours": [stream, slower, stream]}, "missing")
    assert row.cpu_us == pytest.approx(0.1e6 / 6600)
    assert (row.ratio, row.events_per_read, row.errors) == (None, 1.0, 3)
    assert (row.requests_per_s, row.p50_ms) == (50.0, 1.0)


@pytest.mark.parametrize(
    ("changed", "scenario", "says"),
    [
        ({}, SHORT, []),
        ({"ratio": 2.5}, SHORT, []),
        (
            {"ratio": 2.51},
            SHORT,
            ["short: CPU per request at most 2.5 times the baseline's; it was 2.51"],
        ),
        (
            {"ratio": 1.9},
            STREAM,
            ["s64p: CPU per event at most 1.8 times the baseline's; it was 1.90"],
        ),
        ({"ratio": 99.0}, SCENARIOS["64k"], []),
        ({"ratio": None}, SHORT, []),
        ({"events_per_read": 1.09, "ratio": 1.0}, STREAM, []),
        (
            {"events_per_read": 1.45, "ratio": 1.0},
            STREAM,
            ["s64p: events/read 1.0; it was 1.45"],
        ),
        ({"errors": 3}, SHORT, ["short: no errors; there were 3"]),
        ({"cpu_us": None, "ratio": None}, SHORT, ["short: no request was answered"]),
    ],
)
def test_goals(changed: dict, scenario, says: list[str]):
    assert missed_goals(replace(ROW, **changed), scenario) == says


def test_the_table_shows_the_goal_beside_our_figure_and_who_was_skipped():
    found = [replace(ROW, gateway="baseline", ratio=1.0), ROW]
    console = Console(file=io.StringIO(), width=120)
    console.print(report.table(SHORT, found, {"peer": "cannot be installed: no network"}, "ours"))
    lines = console.file.getvalue().splitlines()
    shown = {line.split("│")[1].strip(): line for line in lines if line.startswith("│")}
    assert [cell.strip() for cell in shown["ours"].split("│")[2:6]] == [
        "200.0",
        "2.00",
        "<= 2.5",
        "500",
    ]
    assert "<=" not in shown["baseline"]
    assert "skipped" in shown["peer"]


def test_the_file_holds_rows_and_the_reasons_of_those_that_were_not_measured():
    written = json.loads(json.dumps(report.as_json([ROW], {"peer": "no network"})))
    assert written["rows"][0]["ratio"] == 2.0
    assert written["skipped"] == {"peer": "no network"}
