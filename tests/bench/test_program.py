"""The bench, for real and short, against our own gateway alone."""

import json
import shutil
from pathlib import Path

import pytest

from loadtests.bench import peers
from loadtests.bench.peers import Peer, PeerMissing
from loadtests.bench.program import main
from loadtests.children import Children
from loadtests.usage import cpu_s, tree


def test_a_run_against_our_gateway_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], require
):
    require("a C compiler", shutil.which("cc") is not None, "apt-get install gcc")
    require("/proc", Path("/proc/self/stat").is_file(), "a Linux machine")
    path = tmp_path / "bench.json"
    argv = ["--scenarios", "s64p", "--rounds", "1", "--seconds", "1", "--json", str(path)]
    # Not the exit code: on a busy machine events may merge on their way, and a goal be missed.
    main([*argv, "--only", "warmroute round_robin"])
    (row,) = json.loads(path.read_text())["rows"]
    assert row["errors"] == 0
    assert row["cpu_us"] > 0
    assert row["ratio"] is None
    assert "warmroute round_robin" in capfd.readouterr().out


def test_an_unknown_scenario_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--scenarios", "shrt"])
    assert "no scenario 'shrt'; there are short, 8k, 64k, s64p" in capsys.readouterr().err


def test_a_tree_is_a_process_and_its_descendants(tmp_path: Path):
    with Children({"PATH": "/usr/bin:/bin"}, tmp_path) as children:
        child = children.start(
            "parent", ["/bin/sh", "-c", 'echo "{\\"url\\": 1}"; sleep 30 & wait']
        )
        child.wait_ready()
        pids = tree(child.pid)
        assert pids[0] == child.pid
        assert cpu_s(pids) >= 0.0
    assert cpu_s(pids) == 0.0


def test_a_peer_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[list[str]] = []
    monkeypatch.setattr(peers, "_run", calls.append)
    peer = Peer("a-router", "1.2.3", ())
    (tmp_path / "a-router").mkdir()
    assert peer.install(tmp_path) == tmp_path / "a-router" / "bin" / "a-router"
    assert calls[1][-1] == "a-router==1.2.3"
    peer.install(tmp_path)
    assert len(calls) == 2


def test_what_pip_says_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PeerMissing, match="no such peer"):
        peers._run(["/bin/sh", "-c", "echo no such peer >&2; exit 1"])
