"""The janitor on a real FUSE mount: hung, failing, and back again."""

import io
import time
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.l2.janitor import Janitor
from gateway.l2.janitor_directory import open_directory
from gateway.l2.janitor_loop import Teller
from gateway.l2.janitor_plan import Limits
from gateway.l2.janitor_watch import Keeper, Patience
from gateway.observability.janitor_metrics import JanitorMetrics
from tests.support.fuse_mounts import FuseMount, fuse_mount


@pytest.fixture
def mount(tmp_path: Path):
    with fuse_mount(tmp_path) as mounted:
        yield mounted


def stalled(metrics: JanitorMetrics, path: str) -> float:
    return metrics.stalled.labels(path)._value.get()


def test_a_mount_that_hangs_is_told_and_comes_back(mount: FuseMount):
    janitor = Janitor(Limits(max_bytes=0), time.time, lambda: None, delete=True)
    path = str(mount.path)
    keeper = Keeper(path, janitor, open_directory, Patience(0.05, 0.3, tick_s=0.01))
    metrics, out, err = JanitorMetrics(), io.StringIO(), io.StringIO()
    teller = Teller(out, err, metrics, as_json=False, bar=False)
    mount.order("hung")
    for _ in range(2):
        teller.watch(keeper)
        assert keeper.outcome.hung_s >= 0.3
        assert stalled(metrics, path) == 1
    assert "the mount hangs" in err.getvalue()
    assert "given up for now" in err.getvalue()
    mount.order("empty")
    # What hung finishes its round.
    while keeper.outcome.round is None:
        teller.watch(keeper)
    assert stalled(metrics, path) == 0
    assert "0 files of LMCache" in out.getvalue()


def test_a_single_round_on_a_mount_that_hangs_ends_with_its_own_code(mount: FuseMount, capsys):
    mount.order("hung")
    arguments = ["--max-bytes", "1G", "--stall", "0.05s", "--give-up", "0.3s"]
    assert main(["l2-janitor", str(mount.path), *arguments]) == 3
    assert "given up for now" in capsys.readouterr().err


def test_a_mount_that_fails_is_a_problem(mount: FuseMount, capsys):
    mount.order("error")
    assert main(["l2-janitor", str(mount.path), "--max-bytes", "1G"]) == 1
    assert f"{mount.path}: Input/output error" in capsys.readouterr().err
