"""How many requests may be at the replicas at once, and who comes next when that is reached."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from gateway.config.guards import LimitsConfig
from gateway.errors import Overloaded, QueueTimeout


class Admission:
    """A gate with a bounded queue in front of it, fair between API keys.

    Args:
        limits: Places at the replicas, places in the queue, and how long one may wait there.
    """

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._num_inside = 0
        self._num_waiting = 0
        # Keys take turns: the first one gives one request, then goes to the end of the line.
        self._line: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def num_inside(self) -> int:
        """Requests that were let in and have not ended."""
        return self._num_inside

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return self._num_waiting

    def configure(self, limits: LimitsConfig) -> None:
        """Put other limits in force. Whoever is in stays, also where there are fewer places."""
        self._limits = limits
        self._let_in()

    async def enter(self, key_name: str) -> None:
        """Take a place for one request; give it back with `leave`.

        Args:
            key_name: Whose request it is.

        Raises:
            Overloaded: The queue is full. No place was taken.
            QueueTimeout: The wait was too long. No place was taken.
        """
        if self._num_inside < self._limits.max_in_flight:
            self._num_inside += 1
        else:
            await self._wait(key_name)

    def leave(self) -> None:
        """Give a place back."""
        self._num_inside -= 1
        self._let_in()

    def _let_in(self) -> None:
        """Give free places to those who wait, so that nobody who comes later finds one."""
        while self._line and self._num_inside < self._limits.max_in_flight:
            key_name, waiting = self._line.popitem(last=False)
            turn = waiting.popleft()
            if waiting:
                self._line[key_name] = waiting
            if not turn.done():
                turn.set_result(None)
                self._num_inside += 1

    async def _wait(self, key_name: str) -> None:
        if self._num_waiting >= self._limits.queue_requests:
            raise Overloaded("Too many requests at once (limits.max_in_flight).")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.setdefault(key_name, deque()).append(turn)
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self._limits.queue_timeout_s):
                await turn
        except BaseException as error:
            self._give_up(key_name, turn)
            if isinstance(error, TimeoutError):
                message = f"No place within {self._limits.queue_timeout_s:g} s."
                raise QueueTimeout(message) from None
            raise
        finally:
            self._num_waiting -= 1

    def _give_up(self, key_name: str, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            self.leave()  # the place came in the same moment: it goes to the next one
            return
        waiting = self._line.get(key_name)
        if waiting is not None and turn in waiting:
            waiting.remove(turn)
            if not waiting:
                del self._line[key_name]
