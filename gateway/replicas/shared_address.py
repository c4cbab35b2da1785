"""Notices that one address has several engines behind it. Pure.

A Service or a load balancer in the place of a replica takes the choice away from us: prompts go to
an engine by chance. It shows in what differs from connection to connection.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from gateway.replicas.facts import EnginePage

# Readings over connections of their own when a replica is first seen. A balancer that takes turns
# shows with the second; one that draws between two engines escapes four with a chance of 1 in 8,
# and each later reading halves it.
FIRST_READINGS = 4
# Engines remembered: more restarts than an address sees between two readings of the same one.
_MAX_REMEMBERED = 8
# Readings of one engine in a row, each over a connection of its own, after which an address counts
# as mended. Two engines behind it would escape as many with a chance of 1 in 65,536.
_READINGS_TO_CLEAR = 16

_Identity = tuple[float | None, int | None, int | None]


class SharedAddress(StrEnum):
    """Why an address is not one replica."""

    ENGINES = "engines"  # connections reach different engine processes
    ADDRESSES = "addresses"  # the host name resolves to several addresses


class AddressWatch:
    """Watches one address over its readings."""

    def __init__(self) -> None:
        self._engines: deque[_Identity] = deque(maxlen=_MAX_REMEMBERED)  # the latest last
        self._same_in_a_row = 0
        self._has_engines = False
        self._has_addresses = False

    @property
    def finding(self) -> SharedAddress | None:
        """Why the address is shared; None while nothing says so."""
        if self._has_engines:
            return SharedAddress.ENGINES
        return SharedAddress.ADDRESSES if self._has_addresses else None

    def read(self, page: EnginePage, *, fresh: bool = True, at_once: bool = False) -> None:
        """Take a reading.

        Args:
            page: What an engine there said.
            fresh: It came over a connection of its own. Most balancers choose for a connection, so
                only then is it telling that an engine is the same; some choose for a request.
            at_once: It follows the last reading so closely that no engine can have started in
                between, which takes seconds.
        """
        if page.started_at is None:
            return  # it does not say who it is
        engine = (page.started_at, page.block_size, page.num_blocks)
        if self._engines and engine == self._engines[-1]:
            self._same_in_a_row += fresh
            if self._same_in_a_row >= _READINGS_TO_CLEAR:
                self._has_engines = False
            return
        # Another one is a restart; one that was there before is not: a restart never goes back.
        if engine in self._engines or (at_once and self._engines):
            self._has_engines = True
        self._same_in_a_row = 0
        self._engines.append(engine)

    def resolved(self, addresses: int) -> None:
        """Take how many addresses of one family the host name has; 1 for an address itself."""
        self._has_addresses = addresses > 1
