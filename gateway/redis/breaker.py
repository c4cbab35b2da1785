"""When to stop asking a server that answers too late. Pure."""

from __future__ import annotations

# Calls in a row that were late, and for how long at least: a pause of our own event loop makes all
# calls of that moment late at once, and is over before the second passes.
LATE_CALLS = 5
LATE_FOR_S = 0.05


class Breaker:
    """Counts calls in a row that were late.

    Open means: do not ask. It is closed again from outside, by a probe that was answered in time.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._num_late = 0
        self._late_since = 0.0

    def succeeded(self) -> None:
        """Note a call that was in time."""
        self._num_late = 0

    def late(self, now: float) -> bool:
        """Note a call that was late; True where that opened the breaker."""
        if not self._num_late:
            self._late_since = now
        self._num_late += 1
        if self.is_open or self._num_late < LATE_CALLS or now - self._late_since < LATE_FOR_S:
            return False
        self.is_open = True
        return True

    def close(self) -> None:
        """Ask again."""
        self.is_open = False
        self._num_late = 0
