"""The supervisor's private folder, and those of supervisors that were killed."""

import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gateway.workers.folder import private_folder
from tests.support.crews import ROOT

HOLDING = """
import time
from gateway.workers.folder import private_folder
with private_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def supervisor(parent: Path):
    """A process that has a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING],
        cwd=ROOT, env={"TMPDIR": str(parent)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def test_it_is_private_and_removed_with_all_that_is_in_it(parent: Path):
    with private_folder() as folder:
        assert folder.parent == parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "worker-0.sock").touch()
    assert list(parent.iterdir()) == []


def test_a_killed_supervisors_folder_goes_with_the_next_start_and_a_living_ones_stays(
    supervisor, parent: Path
):
    left = Path(supervisor.stdout.readline().strip())
    (left / "server.log").touch()
    with private_folder() as other:
        assert sorted(parent.iterdir()) == sorted([left, other])
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    assert left.exists()
    with private_folder() as other:
        assert list(parent.iterdir()) == [other]


def test_what_is_not_a_supervisors_folder_stays(parent: Path):
    (parent / "warmroute-notes").mkdir()
    (parent / "warmroute-file").touch()
    (parent / "elsewhere").mkdir()
    (parent / "elsewhere/supervisor.lock").touch()
    (parent / "warmroute-link").symlink_to(parent / "elsewhere")
    before = sorted(parent.rglob("*"))
    with private_folder():
        pass
    assert sorted(parent.rglob("*")) == before
