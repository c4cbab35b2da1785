"""What the demo writes and says."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console

from loadtests.demo import report
from loadtests.demo.client import Answer, Failure
from loadtests.demo.figures import Figures

ROUND_ROBIN = Figures(0.4, 1.6, 3.0, 0.8, 0.57, 1.7, 9.0, 0)
OURS = Figures(0.1, 0.6, 1.0, 0.2, 0.82, 1.4, 12.0, 0)


def test_the_json_holds_the_figures_by_policy_and_nothing_else(tmp_path: Path):
    path = tmp_path / "build" / "demo.json"
    report.write_json({"round_robin": ROUND_ROBIN, "expected_ttft": OURS}, path)
    written = json.loads(path.read_text())
    assert list(written) == ["round_robin", "expected_ttft"]
    assert written["expected_ttft"] == {
        "ttft_p50_s": 0.1,
        "ttft_p90_s": 0.6,
        "ttft_p99_s": 1.0,
        "ttft_mean_s": 0.2,
        "prefix_hit_ratio": 0.82,
        "skew": 1.4,
        "requests_per_s": 12.0,
        "errors": 0,
    }


def test_what_could_not_be_measured_is_null_in_the_json(tmp_path: Path):
    nothing = Figures(*[float("nan")] * 4, 0.0, 1.0, 0.0, 9)
    report.write_json({"round_robin": nothing}, tmp_path / "demo.json")
    written = json.loads((tmp_path / "demo.json").read_text())
    assert written["round_robin"]["ttft_mean_s"] is None
    assert written["round_robin"]["errors"] == 9


def test_the_table_shows_both_passes_and_their_ratio():
    console = Console(record=True, width=100)
    console.print(report.table({"round_robin": ROUND_ROBIN, "expected_ttft": OURS}))
    text = console.export_text()
    (mean,) = (line for line in text.splitlines() if "TTFT mean" in line)
    assert [cell.strip() for cell in mean.strip("│ ").split("│")][1:] == ["0.800", "0.200", "0.25"]


def test_goals_that_are_met_are_not_mentioned():
    assert report.missed_goals(ROUND_ROBIN, OURS, full=True) == []


def test_every_missed_goal_has_its_line():
    slow = Figures(0.4, 1.6, 3.0, 0.6, 0.5, 1.8, 9.0, 3)
    assert report.missed_goals(ROUND_ROBIN, slow, full=True) == [
        "no errors; 3 requests failed",
        "mean TTFT at most 0.5 of round robin's; it was 0.75",
        "skew at most 1.6; it was 1.80",
    ]
    assert report.missed_goals(ROUND_ROBIN, slow, full=False) == ["no errors; 3 requests failed"]


def test_a_run_without_a_first_token_misses_its_goal():
    nothing = Figures(*[float("nan")] * 4, 0.0, 1.0, 0.0, 9)
    assert len(report.missed_goals(nothing, nothing, full=True)) == 2


def test_failures_are_counted_by_kind_and_replica_with_an_example():
    def broken(replica: str, detail: str) -> Answer:
        return Answer(0.0, replica=replica, failure=Failure.BROKEN, detail=detail)

    answers = [broken("r1", "closed"), Answer(0.0), broken("r1", "closed too"), broken("", "x")]
    assert report.failures(answers) == ["2 x broken stream on r1: closed", "1 x broken stream: x"]


def test_the_curl_lines_can_be_pasted_into_a_shell():
    fleet = SimpleNamespace(url="http://127.0.0.1:1", admin_url="http://127.0.0.1:2")
    chat, explain, metrics = (shlex.split(line) for line in report.curl_lines(fleet))
    assert chat[2] == "http://127.0.0.1:1/v1/chat/completions"
    assert json.loads(chat[-1])["stream"] is True
    assert explain[2] == "http://127.0.0.1:2/admin/explain"
    assert metrics[2] == "http://127.0.0.1:2/metrics"
