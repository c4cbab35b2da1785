"""Rounds that are watched: a mount that hangs takes one thread, and is told, and nothing else.

A call on a FUSE mount whose server is gone may never come back, and nothing ends the thread that
made it. So every call is made in a thread of the directory's own, and no second one is begun while
that has not come back.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from gateway.l2.janitor import Janitor, Round
from gateway.l2.janitor_directory import Directory, Refused
from gateway.l2.janitor_progress import Progress, Stopped

# How often the thread that watches looks; also what a signal waits for.
_TICK_S = 0.2
# A thread that does not hang notices a stop at its next entry.
_STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a mount may take for one call.

    Attributes:
        stall_s: From then on it is said to hang.
        give_up_s: From then on the round is not waited for any longer.
        tick_s: How often to look.
    """

    stall_s: float
    give_up_s: float
    tick_s: float = _TICK_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round ended: exactly one of these is set, or none of them after a stop.

    Attributes:
        round: What it did.
        refused: Why the directory is not one for a janitor.
        problem: What the file system said.
        hung_s: Since when it does not answer.
    """

    round: Round | None = None
    refused: str = ""
    problem: str = ""
    hung_s: float = 0.0


class Keeper:
    """One directory and the thread that works on it.

    Args:
        path: As given by the operator; `path` of the object is what to call it.
        janitor: Does the rounds.
        opening: Opens `path`; in the thread, because that may hang as well.
        patience: With the mount.
    """

    def __init__(
        self,
        path: str,
        janitor: Janitor,
        opening: Callable[[str], AbstractContextManager[Directory]],
        patience: Patience,
    ) -> None:
        # Names need not be UTF-8, and what is told of them has to be.
        self.path = os.fsencode(path).decode("utf-8", "backslashreplace")
        self._path = path
        self.progress = Progress()
        self._janitor = janitor
        self._opening = opening
        self._patience = patience
        self.outcome = Outcome()
        self._thread: threading.Thread | None = None
        self._ended = Outcome()
        self._last_beats = 0
        self._last_beat_at = time.monotonic()

    def watch(self) -> Iterator[float]:
        """Do a round, or wait on for one that hung before.

        Yields:
            Every now and then: the seconds for which the mount has not answered, 0.0 where it has
            within `stall_s`. When it ends, `outcome` is what became of the round.
        """
        if self._thread is None:
            # A daemon: a thread that hangs must not keep the process from ending.
            self._last_beat_at = time.monotonic()
            self._thread = threading.Thread(target=self._work, name="l2-janitor", daemon=True)
            self._thread.start()
        while True:
            self._thread.join(self._patience.tick_s)
            if not self._thread.is_alive():
                self._thread = None
                self.outcome = self._ended
                return
            silent_s = self._silent_s()
            if self.progress.stop.is_set():
                self._thread.join(_STOP_S)
                self.outcome = Outcome()
                return
            if silent_s >= self._patience.give_up_s:
                self.outcome = Outcome(hung_s=silent_s)
                return
            yield silent_s if silent_s >= self._patience.stall_s else 0.0

    def _silent_s(self) -> float:
        now = time.monotonic()
        if self.progress.beats != self._last_beats:
            self._last_beats, self._last_beat_at = self.progress.beats, now
        return now - self._last_beat_at

    def _work(self) -> None:
        # What ends the thread in no way of those below must not pass for the round before.
        self._ended = Outcome(problem="the round ended by a fault of the janitor's own")
        try:
            with self._opening(self._path) as directory:
                self._ended = Outcome(round=self._janitor.run(directory, self.progress))
        except Refused as error:
            self._ended = Outcome(refused=str(error))
        except OSError as error:
            self._ended = Outcome(problem=error.strerror or str(error))
        except Stopped:
            self._ended = Outcome()


def pace(per_second: float, stop: threading.Event) -> Callable[[], None]:
    """Return a function that lets its caller through at most so many times a second.

    Args:
        per_second: Above 0.
        stop: Set when nobody is to wait any longer.
    """
    step_s = 1 / per_second
    next_at = [0.0]

    def wait() -> None:
        now = time.monotonic()
        if next_at[0] > now:
            stop.wait(next_at[0] - now)
        next_at[0] = max(next_at[0], now) + step_s

    return wait
