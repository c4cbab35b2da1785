"""The order of one replica's KV event batches. Pure.

A publisher numbers its batches from 0, one at a time. A number that is missing was lost; a number
that the live stream has passed already means that a new engine process is counting from 0 again.
"""

from __future__ import annotations

from enum import StrEnum


class Step(StrEnum):
    """What to do with a batch."""

    APPLY = "apply"  # the next one
    SKIP = "skip"  # known already, from a replay
    GAP = "gap"  # some before it are missing: replay from `expected`, then ask again
    RESTART = "restart"  # a new engine process: clear the replica, then ask again


class Sequence:
    """Decides what to do with each batch, live or replayed.

    Attributes:
        expected: The sequence number that comes next.
    """

    def __init__(self) -> None:
        self.expected = 0
        self._last_live = -1

    def live(self, number: int) -> Step:
        """Judge a batch of the live stream, whose numbers only ever rise.

        A lower number is a restart: a replay can run ahead of the live stream, but the stream
        itself never goes back.
        """
        if number <= self._last_live:
            return Step.RESTART
        self._last_live = number
        return self._place(number)

    def replayed(self, number: int) -> Step:
        """Judge a batch that a replay brought."""
        return self._place(number)

    def applied(self, number: int) -> None:
        """Note that a batch was applied."""
        self.expected = number + 1

    def restart(self) -> None:
        """A new engine process counts from 0."""
        self.expected = 0
        self._last_live = -1

    def _place(self, number: int) -> Step:
        if number == self.expected:
            return Step.APPLY
        return Step.SKIP if number < self.expected else Step.GAP
