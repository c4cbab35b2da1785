"""The demo program: a whole run over a stand-in for the fleet, and what goes wrong at start."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtests.children import wait_until
from loadtests.demo import fleet, program

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stand_in_fleet(monkeypatch: pytest.MonkeyPatch, stand_in_type) -> list[str]:
    """Put stand-ins in the place of the processes; return the policies that were started."""
    started: list[str] = []

    @contextmanager
    def running(
        policy: str, folder: Path, num_blocks: int | None = None, workers: int = 1
    ) -> Iterator[object]:
        started.append(policy)
        with served(stand_in_type()) as url:
            children = SimpleNamespace(ended=list)
            yield SimpleNamespace(url=url, admin_url=url, replicas=(), children=children)

    monkeypatch.setattr(fleet, "running", running)
    return started


@contextmanager
def served(server) -> Iterator[str]:
    """Serve on a thread of its own, as the fleet's processes do beside the program."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    start = asyncio.start_server(server.serve, "127.0.0.1", 0)
    sockets = asyncio.run_coroutine_threadsafe(start, loop).result()
    try:
        yield "http://127.0.0.1:{1}".format(*sockets.sockets[0].getsockname())
    finally:
        loop.call_soon_threadsafe(sockets.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def log_of(path: Path, *texts: str) -> Path:
    rows = [{"timestamp": 1, "input": text, "output": "a few words"} for text in texts]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_run_sends_the_same_requests_under_both_policies(
    stand_in_fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    trace = log_of(tmp_path / "log.jsonl", "one", "two", "three")
    path = tmp_path / "build" / "demo.json"
    code = program.main(["--once", "--trace", str(trace), "--json", str(path)])
    assert code == 0
    assert stand_in_fleet == ["round_robin", "expected_ttft"]
    written = json.loads(path.read_text())
    assert [figures["errors"] for figures in written.values()] == [0, 0]
    assert [figures["prefix_hit_ratio"] for figures in written.values()] == [0.4, 0.4]
    output = capsys.readouterr().out
    assert "3 of 3 calls, 3 of 3 sessions" in output
    assert "TTFT mean, s" in output


def test_errors_fail_a_replay_and_are_explained(
    stand_in_fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    trace = log_of(tmp_path / "log.jsonl", "one", "close early")
    code = program.main(["--once", "--trace", str(trace), "--json", str(tmp_path / "demo.json")])
    output = capsys.readouterr()
    assert code == 1
    assert "round_robin: 1 x broken stream on replica-" in output.out
    assert output.err == "demo: goal: no errors; 2 requests failed\n"


def test_a_trace_that_cannot_be_read_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert program.main(["--trace", "no/such/log"]) == 1
    assert capsys.readouterr().err == (
        "demo: no/such/log: no such file or folder; give a JSONL log or a folder of them\n"
    )


def test_a_replica_that_does_not_start_is_one_line_with_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(fleet, "_simulator_argv", lambda _: [sys.executable, "-m", "no_such"])
    trace = log_of(tmp_path / "log.jsonl", "one")
    code = program.main(["--once", "--trace", str(trace), "--json", str(tmp_path / "demo.json")])
    error = capsys.readouterr().err
    assert code == 1
    assert error.startswith("demo: replica-0 ended with code 1 before it was ready: ")
    assert f"{tmp_path}/demo/round_robin/replica-0.log" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("seconds", ["4", "nan", "x"])
def test_a_run_that_is_too_short_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as raised:
        program.main(["--seconds", seconds])
    assert raised.value.code == 2
    assert "--seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_a_signal_ends_every_process_that_was_started(tmp_path: Path, number, code):
    mark = f"WARMROUTE_TEST_{tmp_path.name}"
    demo = subprocess.Popen(
        [sys.executable, "-m", "loadtests.demo", "--json", str(tmp_path / "demo.json")],
        cwd=ROOT,
        env={**os.environ, mark: "1"},
        stdout=subprocess.DEVNULL,
    )
    try:
        assert wait_until(lambda: len(marked(mark)) >= 1 + fleet.NUM_REPLICAS, 60.0)
        demo.send_signal(number)
        assert demo.wait(10.0) == code
        assert marked(mark) == []
    finally:
        demo.kill()
        demo.wait()


def marked(name: str) -> list[int]:
    """Return the processes that have an environment variable of this name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{name}=".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # another user's, or gone meanwhile
    return found


def test_the_gateway_is_configured_for_the_replicas():
    text = fleet.gateway_yaml("round_robin", ["http://127.0.0.1:1", "http://127.0.0.1:2"])
    assert "kind: round_robin" in text
    assert "id: replica-1\n    url: http://127.0.0.1:2" in text
