"""A mount that hangs costs a few threads and nobody else anything."""

import asyncio
import threading
import time
from unittest import mock

import pytest

from gateway.l2.mount import Mount
from gateway.threads import Threads
from tests.support.replicas import WAIT_S, until

STALL_S = 0.05
# For calls that do return: a thread of a busy machine may get no turn for a while.
PATIENT_S = 5.0


@pytest.fixture
def told():
    return []


@pytest.fixture
async def mount(tmp_path, told):
    mount = Mount([str(tmp_path)], 2, PATIENT_S, told.append)
    yield mount
    mount.close()


def look_impatiently(mount, run):
    """Look something up, which marks the mount down after `STALL_S`."""
    with mock.patch.object(mount, "_stall_s", STALL_S):
        return mount.look(run)


class Hang:
    """A system call that does not return until it is let go."""

    def __init__(self):
        self._go = threading.Event()
        self.num_inside = 0

    def __call__(self):
        self.num_inside += 1
        self._go.wait(30)
        return "back"

    def end(self):
        self._go.set()


async def test_it_is_up_after_the_first_good_probe(mount, told):
    assert mount.look(lambda: 1) is None, "nothing is known yet"
    await mount.probe()
    assert mount.down_reason is None
    assert await mount.look(lambda: 7) == 7
    assert told == ["up"]


async def test_a_loop_that_was_held_up_is_no_fault_of_the_mount(mount, monkeypatch):
    await mount.probe()
    loop, has_come = asyncio.get_running_loop(), threading.Event()
    tell = loop.call_soon_threadsafe

    def told_by_the_thread(*args):
        tell(*args)
        has_come.set()

    monkeypatch.setattr(loop, "call_soon_threadsafe", told_by_the_thread)
    answer = look_impatiently(mount, lambda: 7)
    assert has_come.wait(WAIT_S)
    time.sleep(2 * STALL_S)  # noqa: ASYNC251 - what a long step of our own does
    assert await answer == 7
    assert mount.down_reason is None


async def test_a_call_that_does_not_return_marks_it_down_within_the_stall_time(mount, told):
    await mount.probe()
    hang = Hang()
    began = asyncio.get_running_loop().time()
    late = look_impatiently(mount, hang)
    await until(lambda: mount.down_reason == "slow", "down")
    assert STALL_S <= asyncio.get_running_loop().time() - began < PATIENT_S
    assert mount.look(lambda: 1) is None
    assert mount.counts.downs == {"slow": 1}
    hang.end()
    assert await late == "back", "what comes late still tells"
    assert told == ["up", "down"]


async def test_no_more_calls_than_threads_hang_and_nothing_is_queued_behind_them(mount):
    await mount.probe()
    hang = Hang()
    pending = [look_impatiently(mount, hang) for _ in range(5)]
    assert [future is not None for future in pending] == [True, True, False, False, False]
    assert mount.num_threads_busy == 2
    await until(lambda: mount.down_reason == "slow", "down")
    assert [mount.look(hang) for _ in range(5)] == [None] * 5
    assert hang.num_inside == 2
    hang.end()
    await asyncio.gather(*pending[:2])
    assert mount.num_threads_busy == 0


async def test_it_comes_back_after_two_good_probes(mount, told):
    await mount.probe()
    hang = Hang()
    pending = look_impatiently(mount, hang)
    await until(lambda: mount.down_reason == "slow", "down")
    hang.end()
    await pending
    await mount.probe()
    assert mount.down_reason == "slow"
    await mount.probe()
    assert mount.down_reason is None
    assert told == ["up", "down", "up"]


async def test_a_missing_directory_is_down_and_an_errors_reason_is_told(tmp_path, told):
    mount = Mount([str(tmp_path / "nowhere")], 1, PATIENT_S, told.append)
    await mount.probe()
    assert mount.down_reason == "missing"
    assert mount.down_problem == "No such file or directory"
    mount.close()


async def test_a_mount_that_hung_and_is_gone_now_is_told_as_gone(tmp_path, told):
    path = tmp_path / "l2"
    path.mkdir()
    mount = Mount([str(path)], 1, PATIENT_S, told.append)
    await mount.probe()
    hang = Hang()
    pending = look_impatiently(mount, hang)
    await until(lambda: mount.down_reason == "slow", "down")
    hang.end()
    await pending
    path.rmdir()
    await mount.probe()
    assert mount.down_reason == "missing"
    assert told == ["up", "down"]
    mount.close()


async def test_a_look_that_fails_marks_it_down(mount):
    await mount.probe()

    def fails():
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError):
        await mount.look(fails)
    await until(lambda: mount.down_reason == "error", "down")
    assert mount.down_problem == "Input/output error"
    assert mount.counts.errors == 1


async def test_another_directory_in_its_place_is_told(tmp_path, told):
    path = tmp_path / "l2"
    path.mkdir()
    mount = Mount([str(path)], 1, PATIENT_S, told.append)
    await mount.probe()
    path.rename(tmp_path / "old")
    path.mkdir()
    await mount.probe()
    assert told == ["up", "replaced"]
    mount.close()


async def test_threads_that_hang_do_not_keep_the_process():
    threads = Threads(1, "test")
    hang = Hang()
    pending = threads.submit(hang)
    names = [thread for thread in threading.enumerate() if thread.name == "test-1"]
    assert [thread.daemon for thread in names] == [True]
    hang.end()
    await pending
    threads.close()
