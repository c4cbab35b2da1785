"""Child processes: ready lines, clear failures, and no survivors."""

import os
import signal
import sys
from pathlib import Path

import pytest

from loadtests.children import Child, ChildError, Children, wait_until

READY = 'print(\'noise\'); print(\'{"url": "http://x", "port": 1}\', flush=True)'
STAY = "import time; time.sleep(60)"


def python(*statements: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(statements)]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def children(tmp_path: Path):
    with Children(dict(os.environ), tmp_path / "logs") as started:
        yield started


def test_the_ready_line_is_found_among_others(children: Children):
    child = children.start("one", python(READY, STAY))
    assert child.wait_ready() == {"url": "http://x", "port": 1}
    assert children.ended() == []


def test_a_child_that_ends_before_it_is_ready_is_one_line_with_its_last_words(children: Children):
    child = children.start("one", [sys.executable, "-m", "no_such_module"])
    with pytest.raises(ChildError) as raised:
        child.wait_ready()
    text = str(raised.value)
    assert text.startswith("one ended with code 1 before it was ready: ")
    assert "No module named no_such_module" in text
    assert str(child.log) in text
    assert "\n" not in text


def test_a_child_that_is_never_ready_is_given_up(children: Children):
    with pytest.raises(ChildError, match=r"one was not ready within 0.05 s; see .*one\.log"):
        children.start("one", python(STAY)).wait_ready(deadline_s=0.05)


def test_children_end_with_the_block_even_if_it_fails(tmp_path: Path):
    started = []

    def fail() -> None:
        with Children(dict(os.environ), tmp_path) as children:
            started.append(children.start("one", python(READY, STAY)))
            started[0].wait_ready()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not is_running(started[0].pid)


def test_a_child_that_ignores_the_signal_is_killed_with_what_it_started(tmp_path: Path):
    ignoring = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    grandchild = f"subprocess.Popen([sys.executable, '-c', {STAY!r}])"
    with Children(dict(os.environ), tmp_path, stop_deadline_s=0.1) as children:
        child = children.start("one", python(ignoring, grandchild, READY, STAY))
        child.wait_ready()
        group = child.pid
    assert wait_until(lambda: not group_is_running(group), 5.0)


def group_is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_signal_while_a_child_starts_waits_until_the_child_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started = []

    class Interrupted(Child):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            started.append(self)
            signal.raise_signal(signal.SIGINT)  # as if Ctrl-C came at the worst moment

    monkeypatch.setattr("loadtests.children.Child", Interrupted)

    def start() -> None:
        with Children(dict(os.environ), tmp_path) as children:
            children.start("one", python(READY, STAY))

    with pytest.raises(KeyboardInterrupt):
        start()
    assert not is_running(started[0].pid)


def test_a_child_that_was_killed_is_seen(children: Children):
    child = children.start("one", python(READY, STAY))
    child.wait_ready()
    os.kill(child.pid, 9)
    assert wait_until(lambda: children.ended() == [child], 5.0)
    assert child.exit_code == -9
