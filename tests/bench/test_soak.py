"""The soak's judgement from literal figures, and a short real pass with few open files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.soak.hold import Held
from loadtests.soak.liveness import Liveness
from loadtests.soak.passes import Load, Pass
from loadtests.soak.program import main
from loadtests.soak.report import missed_goals, table

LOAD = Load(streams=10, seconds=1.0)
STREAMS = {
    "streams": 10,
    "complete": 10,
    "cut": 0,
    "out_of_order": 0,
    "refused_503": 0,
    "other_status": 0,
    "closed": 0,
    "unfinished": 0,
    "events": 200,
    "seconds": 2.0,
    "lateness_s": {"p50": 0.001, "p99": 0.002, "max": 0.003},
    "first_event_s": None,
}
FINE, DEAD = Liveness(100, 0, 0.01), Liveness(0, 100, None)
WIDE = Pass(64, STREAMS, FINE, DEAD, 0.5, 30.0, 0.01, None, True)
HELD = Held(opened=40, open=20, refused_503=20, closed=0, cpu_cores=0.01)
NARROW = replace(WIDE, streams={**STREAMS, "complete": 6, "refused_503": 4}, held=HELD)


def test_a_stream_has_twenty_events_a_second(tmp_path: Path):
    assert Load(1, 20.0).events == 400
    body = json.loads(LOAD.write_body(tmp_path).read_text())
    assert (body["max_tokens"], body["seed"], body["stream"]) == (20, 50_000, True)


@pytest.mark.parametrize("found", [WIDE, NARROW, replace(WIDE, public=DEAD, admin=FINE)])
def test_a_good_pass_misses_nothing(found: Pass):
    assert missed_goals(found, LOAD) == []


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (replace(WIDE, streams={**STREAMS, "cut": 2}), "no streams that are cut; there were 2"),
        (
            replace(WIDE, streams={**STREAMS, "complete": 9}),
            "all 10 streams complete; there were 9",
        ),
        (replace(NARROW, streams=STREAMS), "some streams complete, the surplus refused with 503"),
        (replace(WIDE, public=Liveness(99, 1, 0.01)), "/livez always answered, p99 at most 1 s"),
        (replace(WIDE, public=Liveness(100, 0, 1.2)), "/livez always answered, p99 at most 1 s"),
        (replace(WIDE, idle_cores=0.9), "CPU after the streams at most 0.1 cores"),
        (
            replace(NARROW, held=replace(HELD, cpu_cores=1.0)),
            "CPU under idle connections at most 0.1 cores",
        ),
        (replace(WIDE, survived=False), "the gateway lives and answers afterwards"),
    ],
)
def test_every_goal_can_be_missed(found: Pass, says: str):
    assert missed_goals(found, LOAD) == [f"64 open files: {says}"]


def test_the_table_has_a_goal_in_every_row():
    assert all(cell for cell in table(NARROW).columns[2].cells)


def test_a_short_pass_with_few_open_files(tmp_path: Path, require):
    require("a C compiler", shutil.which("cc") is not None, "apt-get install gcc")
    path = tmp_path / "soak.json"
    argv = ["--streams", "150", "--seconds", "1", "--open-files", "256", "--json", str(path)]
    main(argv)
    (found,) = json.loads(path.read_text())["passes"]
    assert found["survived"]
    streams = found["streams"]
    assert streams["complete"] + streams["refused_503"] + streams["closed"] == 150
    assert streams["complete"] > 0
