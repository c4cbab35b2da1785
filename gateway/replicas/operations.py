"""What operators do to replicas: cordon, drain, uncordon, weigh.

Every operation says what shall be and not what shall happen, so a repeated one changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from gateway.errors import ReplicaNotFound
from gateway.observability.logging import EventLog
from gateway.replicas.others import Others
from gateway.replicas.registry import Registry
from gateway.replicas.report import FleetReport
from gateway.replicas.state import ReplicaState
from routing.load import LoadBook, Loads
from routing.types import ReplicaId

# Between two looks at a replica that is waited for. Requests that end must not pay for a look of
# their own, and nobody notices a tenth of a second after minutes.
_LOOK_INTERVAL_S = 0.1
# In an answer to an unknown id.
_MAX_HINTS = 5


class Operations:
    """What operators do to replicas, and the log of it.

    Args:
        registry: The replicas.
        book: What this gateway has there.
        loads: What all gateways have there: a drained one has nothing in flight.
        log: Gets one line a change.
        now: Monotonic seconds.
        others: The other gateways; None where there are none.
    """

    def __init__(
        self,
        registry: Registry,
        book: LoadBook,
        loads: Loads,
        log: EventLog,
        now: Callable[[], float],
        others: Others | None = None,
    ) -> None:
        self._registry = registry
        self._others = others
        self._log = log
        self._now = now
        self.report = FleetReport(registry, book, loads, now, others)

    def show(self, text: str) -> dict[str, Any]:
        """Return one replica.

        Raises:
            ReplicaNotFound: Nobody knows the id.
        """
        return self.report.one(self._known(text))

    async def hold(self, text: str, state: ReplicaState, note: str) -> dict[str, Any]:
        """Cordon or drain a replica, and return it.

        Raises:
            ReplicaNotFound: Nobody knows the id.
        """
        replica_id = self._known(text)
        if self._registry.hold(replica_id, state, note):
            self._log.info("operator", replica=replica_id, hold=state.value, note=note)
        return await self._told(replica_id)

    async def release(self, text: str) -> dict[str, Any]:
        """End a replica's hold, and return it.

        Raises:
            ReplicaNotFound: Nobody knows the id.
        """
        replica_id = self._known(text)
        if self._registry.release(replica_id):
            self._log.info("operator", replica=replica_id, hold=None)
        return await self._told(replica_id)

    async def weigh(self, text: str, weight: float | None) -> dict[str, Any]:
        """Put a weight in the place of a replica's own, or end that, and return the replica.

        Raises:
            ReplicaNotFound: Nobody knows the id.
        """
        replica_id = self._known(text)
        if self._registry.weigh(replica_id, weight):
            self._log.info("operator", replica=replica_id, weight=weight)
        return await self._told(replica_id)

    async def drained(self, text: str, wait_s: float) -> bool:
        """Wait until a replica that drains has nothing in flight.

        Args:
            text: Its id.
            wait_s: Seconds at most.

        Returns:
            Whether that is so; False at once where somebody ended the drain.
        """
        replica_id, deadline = ReplicaId(text), self._now() + wait_s
        while True:
            hold = self._registry.instructions.of(replica_id).hold
            if hold is None or hold.state is not ReplicaState.DRAINING:
                return False
            if self.report.is_idle(replica_id, hold.since):
                return True
            if self._now() >= deadline:
                return False
            await asyncio.sleep(min(_LOOK_INTERVAL_S, max(0.0, deadline - self._now())))

    async def _told(self, replica_id: ReplicaId) -> dict[str, Any]:
        if self._others is not None:
            await self._others.settle()
        return self.report.one(replica_id)

    def _known(self, text: str) -> ReplicaId:
        replica_id = ReplicaId(text)
        if not self._registry.knows(replica_id):
            ids = sorted(self._registry.ids())
            near = get_close_matches(text, ids, _MAX_HINTS, cutoff=0.4) or ids[:_MAX_HINTS]
            hint = f"near it are {', '.join(near)}" if near else "no replica is known yet"
            raise ReplicaNotFound(f"No replica has the id `{text}`; {hint}.", param="id")
        return replica_id
