"""A process that is kept: started again when it ends, ended when it does not answer."""

import asyncio
import contextlib
import logging
import os
import signal
import sys

import pytest

from gateway.observability.logging import EventLog
from gateway.workers import kept
from gateway.workers.kept import Kept, Launched, State, start
from tests.support.replicas import until

FOREVER = "import time; time.sleep(60)"


class Program(Kept):
    """Runs a line of Python; serves when the test says so."""

    def __init__(self, line, log):
        super().__init__("program", log)
        self.line = line
        self.may_serve = asyncio.Event()
        self.well = True
        self.ends = []

    async def launch(self):
        process = await start(sys.executable, "-c", self.line)
        return Launched(process, self._serving())

    async def _serving(self):
        await self.may_serve.wait()

    async def answers(self):
        return self.well

    def serves(self):
        pass

    def ended(self, code, *, served):
        self.ends.append((code, served))


@pytest.fixture
async def kept_program(caplog):
    """Keep a program: `await kept_program(line)`; its log is in `.told`."""
    async with contextlib.AsyncExitStack() as stack:

        async def keep(line):
            logger = logging.getLogger("test.kept")
            logger.setLevel("DEBUG")
            program = Program(line, EventLog(logger))
            task = asyncio.create_task(program.run())

            async def end():
                program.stop()
                program.signal(signal.SIGKILL)
                await task

            stack.push_async_callback(end)
            return program

        yield keep


def pauses(caplog):
    ends = [record for record in caplog.records if record.message == "process_ended"]
    return [record.fields["next_s"] for record in ends]


async def test_pauses_grow_while_it_ends_at_once(kept_program, caplog):
    caplog.set_level("DEBUG")
    program = await kept_program("raise SystemExit(7)")
    await until(lambda: program.restarts >= 3)
    assert pauses(caplog)[:3] == [0.1, 0.2, 0.4]
    assert program.ends[0] == (7, False)
    assert not program.has_served


async def test_one_that_served_and_crashes_is_started_again(kept_program):
    program = await kept_program(FOREVER)
    program.may_serve.set()
    await until(lambda: program.state is State.SERVING)
    killed = program.pid
    os.kill(killed, signal.SIGKILL)
    await until(lambda: program.state is State.SERVING and program.pid != killed)
    assert program.ends == [(-signal.SIGKILL, True)]
    assert program.restarts == 1


async def test_one_that_does_not_answer_three_times_is_killed(kept_program, monkeypatch):
    monkeypatch.setattr(kept, "LOOK_INTERVAL_S", 0.01)
    program = await kept_program(FOREVER)
    program.well = False
    program.may_serve.set()
    await until(lambda: program.restarts == 1)
    assert program.ends == [(-signal.SIGKILL, True)]


async def test_one_that_is_told_to_stop_is_not_started_again(kept_program):
    program = await kept_program(FOREVER)
    await until(lambda: program.pid)
    program.stop()
    await until(lambda: program.exit_code == -signal.SIGTERM)
    assert program.ends == []
    assert program.restarts == 0


async def test_a_stop_in_a_pause_ends_it(kept_program):
    program = await kept_program("raise SystemExit(1)")
    await until(lambda: program.state is State.WAITING and program.restarts > 2)
    program.stop()  # the fixture waits for the end


async def test_a_child_imports_what_its_parent_does(tmp_path, monkeypatch):
    """Not what lies in the working directory, where an operator may have a folder `gateway`."""
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text("raise SystemExit(9)")
    process = await start(
        sys.executable, "-m", "gateway.workers.tether", "0", sys.executable, cwd=tmp_path
    )
    assert await process.wait() == 0  # its parent is not process 0, so it ends at once
