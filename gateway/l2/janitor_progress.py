"""How far a round is, and how it is told to end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


class Stopped(Exception):
    """The process is to end."""


@dataclass(slots=True)
class Progress:
    """How far a round is; written by the thread that works, read by the one that watches.

    Attributes:
        phase: `survey`, `leftovers` or `sweep`.
        seen: Entries in this phase.
        total: Entries that this phase will see; 0 where it is not known yet.
        beats: Calls that came back, over all rounds: while it stands still the mount hangs.
        stop: Set to end the round at the next entry.
    """

    phase: str = "survey"
    seen: int = 0
    total: int = 0
    beats: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def begin(self, phase: str, total: int = 0) -> None:
        """Enter a phase."""
        self.phase, self.seen, self.total = phase, 0, total

    def step(self) -> None:
        """Count an entry.

        Raises:
            Stopped: The process is to end.
        """
        self.seen += 1
        self.beat()

    def beat(self) -> None:
        """Count a call that came back.

        Raises:
            Stopped: The process is to end.
        """
        self.beats += 1
        if self.stop.is_set():
            raise Stopped
