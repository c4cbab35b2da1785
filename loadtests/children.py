"""Child processes with a log each, that say when they are ready and are always ended.

Every child leads a process group of its own, so that Ctrl-C in a terminal reaches only the program
that started them, which then ends them by their ids.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from loadtests.measurement import MeasurementError

# A replica loads a tokenizer and its libraries in 2 to 4 s on an idle machine.
START_DEADLINE_S: Final = 40.0
# SIGTERM first, so that streams end and sockets close; a child that does not listen is killed.
_STOP_DEADLINE_S: Final = 3.0
_POLL_S: Final = 0.02


class ChildError(MeasurementError):
    """A child did not start or did not do its part: one line, with its log where that helps."""


class Child:
    """One started process.

    Args:
        name: What people call it, also the name of its log.
        argv: The command.
        env: The whole environment.
        folder: Where `<name>.log` is written; standard output and error both go there.
    """

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own programs, no shell
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The code it ended with, negative for a signal; None while it runs."""
        return self._process.poll()

    def ready_line(self) -> dict[str, Any] | None:
        """Return the JSON line with a `url` that the child prints when it serves, if it has."""
        for line in self.log.read_bytes().splitlines():
            if line.startswith(b"{") and b'"url"' in line:
                try:
                    found: dict[str, Any] = json.loads(line)
                except ValueError:
                    continue  # the line is still being written
                return found
        return None

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> dict[str, Any]:
        """Return the ready line.

        Raises:
            ChildError: It ended first, or is not ready in time.
        """
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            ready = self.ready_line()
            if ready is not None:
                return ready
            if self.exit_code is not None:
                raise ChildError(
                    f"{self.name} ended with code {self.exit_code} before it was ready: "
                    f"{self._last_words()} (all of it: {self.log})"
                )
            time.sleep(_POLL_S)
        raise ChildError(f"{self.name} was not ready within {deadline_s:g} s; see {self.log}")

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child and whatever it started; nothing if they are gone."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the child now, whatever it is doing, and forget its process id."""
        self.signal_group(signal.SIGKILL)
        self._process.wait()

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


class Children:
    """A context manager that ends every child it started, however the block is left.

    Args:
        env: The children's environment.
        folder: For their logs; made if it is not there.
        stop_deadline_s: Seconds from the polite signal to the one that cannot be ignored.

    Attributes:
        folder: As given.
    """

    def __init__(
        self, env: Mapping[str, str], folder: Path, stop_deadline_s: float = _STOP_DEADLINE_S
    ) -> None:
        self._env = env
        self.folder = folder
        self._stop_deadline_s = stop_deadline_s
        self._started: list[Child] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def start(self, name: str, argv: Sequence[str]) -> Child:
        """Start a process; from the main thread only, as signals are held back meanwhile."""
        with _signals_held():
            child = Child(name, argv, self._env, self.folder)
            self._started.append(child)
        return child

    def ended(self) -> list[Child]:
        """Return the children that are no longer running."""
        return [child for child in self._started if child.exit_code is not None]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The newest first: a gateway before its replicas.
        try:
            for child in reversed(self._started):
                child.signal_group(signal.SIGTERM)
            wait_until(lambda: len(self.ended()) == len(self._started), self._stop_deadline_s)
        finally:  # a second Ctrl-C cuts the wait short, never the killing
            with _signals_held():
                for child in self._started:
                    child.kill()


def wait_until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Return whether `condition` came true within `deadline_s` seconds."""
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)
    return True


@contextmanager
def _signals_held() -> Iterator[None]:
    """Act on signals only after the block: one between a start and its note would leak a child."""
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda caught, _frame: arrived.append(caught))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for held in arrived:
            signal.raise_signal(held)
