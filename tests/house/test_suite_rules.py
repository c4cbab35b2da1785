"""The checks of tests/conftest.py do find what they are for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


def run_suite(folder: Path, source: str, *, ci: bool = False) -> subprocess.CompletedProcess[str]:
    # What leaks here does so for some seconds: a test that takes long itself must not outlast that.
    impatient = CONFTEST.read_text("utf-8").replace("STOP_GRACE_S = 2.0", "STOP_GRACE_S = 0.5")
    (folder / "conftest.py").write_text(impatient)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    (folder / "test_planted.py").write_text(source)
    environment = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment | ({"CI": "true"} if ci else {}),
        capture_output=True,
        text=True,
        check=False,
    )


LEAKED_TASK = """
import asyncio
async def test_it():
    asyncio.get_running_loop().create_task(asyncio.sleep(60))
"""
LEAKED_THREAD = """
import threading, time
def test_it():
    threading.Thread(target=time.sleep, args=(5,)).start()
"""
STOPPED_TASK = """
import asyncio, pytest
@pytest.fixture
async def served():
    task = asyncio.create_task(asyncio.sleep(60))
    yield
    task.cancel()
async def test_it(served):
    await asyncio.to_thread(lambda: None)
"""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (LEAKED_TASK, "tasks outlive the test"),
        (LEAKED_THREAD, "threads outlive the suite"),
    ],
    ids=["task", "thread"],
)
def test_what_outlives_a_test_fails_the_run(tmp_path: Path, source: str, says: str):
    result = run_suite(tmp_path, source)
    assert result.returncode == 1
    assert says in result.stdout


def test_what_a_fixture_stops_is_no_leak(tmp_path: Path):
    result = run_suite(tmp_path, STOPPED_TASK)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(("ci", "code", "word"), [(False, 0, "1 skipped"), (True, 1, "1 failed")])
def test_a_missing_part_skips_here_and_fails_in_ci(tmp_path: Path, ci: bool, code: int, word: str):
    source = "def test_it(require):\n    require('valkey', False, 'apt-get install valkey')\n"
    result = run_suite(tmp_path, source, ci=ci)
    assert result.returncode == code
    assert word in result.stdout
    assert "needs valkey, which is missing here: apt-get install valkey" in result.stdout


def test_the_seed_of_the_order_is_shown(tmp_path: Path):
    assert "--randomly-seed=" in run_suite(tmp_path, "def test_it():\n    pass\n").stdout
