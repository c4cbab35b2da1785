"""What feeds each model with replicas, and what keeps a discovery from knowing better now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.observability.logging import EventLog
from gateway.replicas.discovery.base import Discovery

# Between two looks at the discoveries' problems: attributes are read, nothing is asked. As often
# as replicas are probed by default.
LOOK_INTERVAL_S = 1.0


@dataclass(slots=True, eq=False)
class Feed:
    """One discovery of one model.

    Attributes:
        told: Its problem was logged, and has not ended since.
    """

    model_key: str
    kind: str
    discovery: Discovery
    told: bool = False

    @property
    def problem(self) -> str | None:
        """What keeps it from knowing better now, in one line; None while all is well."""
        return self.discovery.problem


class Feeds:
    """All discoveries of a gateway.

    Args:
        log: Gets one line when a problem begins and one when it ends.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._feeds: list[Feed] = []

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._feeds)

    def add(self, model_key: str, kind: str, discovery: Discovery) -> Feed:
        """Take in a discovery that feeds a model."""
        feed = Feed(model_key, kind, discovery)
        self._feeds.append(feed)
        return feed

    def remove(self, feed: Feed) -> None:
        """Let go of one that feeds nobody any more."""
        self._feeds.remove(feed)

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def look(self) -> None:
        """Tell of problems that began or ended since the last look."""
        for feed in self._feeds:
            problem = feed.problem
            if problem is not None and not feed.told:
                self._log.warning(
                    "discovery_problem", model=feed.model_key, kind=feed.kind, problem=problem
                )
            elif problem is None and feed.told:
                self._log.info("discovery_recovered", model=feed.model_key, kind=feed.kind)
            feed.told = problem is not None
