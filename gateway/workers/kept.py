"""A process that is kept: started again when it ends, and ended when it does not answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from asyncio.subprocess import Process
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.observability.logging import EventLog

# Between an end and the next start: at once for the first crash, which is nobody's fault, and not
# so often that a process which cannot live costs the others a core: a start takes 2 s of one.
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0
# Who served for so long starts again without a memory of earlier ends.
FORGIVEN_AFTER_S = 60.0
# Of looks at whether a process answers. Three misses are 20 s at most; no healthy event loop is
# silent for so long, and a probe of a single gateway gives up no sooner.
LOOK_INTERVAL_S = 5.0
LOOK_TIMEOUT_S = 5.0
MAX_MISSES = 3


class State(StrEnum):
    """Where a kept process is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    WAITING = "waiting"
    """It ended; its next start comes."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A process that was started.

    Attributes:
        process: Leads a process group of its own: Ctrl-C in a terminal is for the supervisor alone.
        serving: Returns when it serves, or raises when it never will.
    """

    process: Process
    serving: Coroutine[Any, Any, None]


class Kept(ABC):
    """A process that is started again whenever it ends, until it is told to stop.

    Args:
        name: What people call it.
        log: Gets one line an end.

    Attributes:
        state: Where it is in its life.
        pid: Process id of the present or last run; 0 before the first.
        restarts: Runs that ended by themselves, or were ended as they did not answer.
        has_served: Whether any run came so far.
        exit_code: Of the last run, negative for a signal; None before its end.
    """

    def __init__(self, name: str, log: EventLog) -> None:
        self.name = name
        self._log = log
        self._stopping = asyncio.Event()
        self._process: Process | None = None
        self.state = State.STARTING
        self.pid = 0
        self.restarts = 0
        self.has_served = False
        self.exit_code: int | None = None
        self._since = time.monotonic()

    @abstractmethod
    async def launch(self) -> Launched:
        """Start the process."""

    @abstractmethod
    async def answers(self) -> bool:
        """Return whether the process answers; slower than `LOOK_TIMEOUT_S` counts as no."""

    @abstractmethod
    def serves(self) -> None:
        """Take notice that a run serves now."""

    @abstractmethod
    def ended(self, code: int, *, served: bool) -> None:
        """Take notice that a run ended by itself.

        Args:
            code: Its exit code, negative for a signal.
            served: Whether it came so far.
        """

    def report(self) -> dict[str, Any]:
        """Return how it is, for people."""
        return {
            "state": self.state,
            "pid": self.pid,
            "for_s": round(time.monotonic() - self._since, 1),
            "restarts": self.restarts,
        }

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def stop(self) -> None:
        """End the process as it likes to be ended, and start no other; again to hurry it."""
        self._stopping.set()
        self.signal(signal.SIGTERM)

    async def run(self) -> None:
        """Keep the process until `stop`, then return when it has ended."""
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            served, code = await self._live()
            if self._stopping.is_set():
                return
            if served and time.monotonic() - began > FORGIVEN_AFTER_S:
                pause_s = FIRST_PAUSE_S
            self.restarts += 1
            self._log.error("process_ended", process=self.name, **self._end(code), next_s=pause_s)
            self._enter(State.WAITING)
            self.ended(code, served=served)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _live(self) -> tuple[bool, int]:
        """Run the process once; return whether it served, and its exit code."""
        self._enter(State.STARTING)
        try:
            launched = await self.launch()
        except OSError as error:
            self._log.error("process_not_started", process=self.name, problem=str(error))
            return False, 1
        self._process, self.pid, self.exit_code = launched.process, launched.process.pid, None
        if self._stopping.is_set():
            self.signal(signal.SIGTERM)
        watching = asyncio.create_task(self._watch(launched.serving), name=f"watch {self.name}")
        await asyncio.sleep(0)  # let it begin to wait: a coroutine that never ran is a warning
        try:
            self.exit_code = await launched.process.wait()
        finally:
            watching.cancel()
            await asyncio.wait({watching})
        return self.state is State.SERVING, self.exit_code

    async def _watch(self, serving: Coroutine[Any, Any, None]) -> None:
        misses = 0
        try:
            await serving
        except TimeoutError:
            misses = MAX_MISSES
        else:
            self.has_served = True
            self._enter(State.SERVING)
            self.serves()
        while misses < MAX_MISSES:
            await asyncio.sleep(LOOK_INTERVAL_S)
            misses = 0 if await self._answers_in_time() else misses + 1
        self._log.error("process_stuck", process=self.name, pid=self.pid)
        self.signal(signal.SIGKILL)

    async def _answers_in_time(self) -> bool:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                return await self.answers()
        except TimeoutError:
            return False

    def _enter(self, state: State) -> None:
        self.state = state
        self._since = time.monotonic()

    def _end(self, code: int) -> Mapping[str, Any]:
        how = {"signal": signal.Signals(-code).name} if code < 0 else {"exit_code": code}
        return {"pid": self.pid, **how, "restarts": self.restarts}


async def start(*command: str, **how: Any) -> Process:
    """Start a process that imports from where this one does, in a process group of its own.

    Args:
        *command: Program and arguments.
        **how: As `asyncio.create_subprocess_exec` takes them.

    Raises:
        OSError: It cannot be started.
    """
    # `python -m` would look into the working directory first, where another `gateway` may lie.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return await asyncio.create_subprocess_exec(*command, env=environ, process_group=0, **how)
