"""When gateways tell and hear each other: around each decision, and otherwise every 25 to 100 ms.

Loads that are 25 ms old cost time to first token even at 13 requests a second, as a replica that
looks idle is where everybody sends the next long prompt. So a request that finds them old asks for
them while its prefix is looked up, which takes as long, and what it adds is told at once
(docs/adr/0041).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

# Where nothing else is to be told: loads that are older cost time to first token (docs/adr/0032).
INTERVAL_S = 0.1
# While several gateways have something in flight: answers begin and end without a decision.
BUSY_INTERVAL_S = 0.025
# Of this gateway's time, at most: with many gateways and replicas ticks are up to as far apart as
# when nothing is in flight.
MAX_SHARE = 0.04
# Between two ticks in any case, and what was heard so long ago is recent.
MIN_PAUSE_S = 0.005
# Of all gateways together, however many requests there are: a tenth of a server's time.
MAX_TICKS_PER_S = 1000
# Nobody answered for two intervals: a request does not wait for them.
SILENT_AFTER_S = 2 * INTERVAL_S


class Pace:
    """Decides when the next tick is due.

    Args:
        now: Monotonic seconds.
        rng: Spreads the ticks of several gateways.
    """

    def __init__(self, now: Callable[[], float], rng: Random) -> None:
        self._now, self._rng = now, rng
        self._woken = asyncio.Event()
        self._next: asyncio.Future[None] | None = None
        self._heard_at = float("-inf")
        self._took_s = 0.0
        self._spent_s = 0.0
        self._num_gateways = 1
        self._is_busy = False

    def wake(self) -> None:
        """Have something told as soon as may be."""
        self._woken.set()

    def tell(self) -> None:
        """Have others told of a decision, if there are any."""
        if self._num_gateways > 1:
            self.wake()

    def ask(self, deadline_s: float) -> asyncio.Future[None] | None:
        """Ask for what others have in flight now.

        Args:
            deadline_s: Seconds that the caller would wait.

        Returns:
            Done once it is known, for all who ask meanwhile; maybe never. None where what is
            known is recent, or where nobody would answer in time.
        """
        age_s = self._now() - self._heard_at
        is_old = self._least_s() < age_s < SILENT_AFTER_S
        if self._num_gateways == 1 or not is_old or self._took_s > deadline_s:
            return None
        self.wake()
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def heard(self, num_gateways: int, took_s: float, spent_s: float, *, is_busy: bool) -> None:
        """Note a tick that went well.

        Args:
            num_gateways: That are there, this one included.
            took_s: Until the answer was there.
            spent_s: Of this gateway's own time on it.
            is_busy: Whether anybody has something in flight.
        """
        self._heard_at = self._now()
        self._num_gateways, self._is_busy = num_gateways, is_busy
        self._took_s, self._spent_s = took_s, spent_s
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    async def rest(self, started: float) -> None:
        """Wait until the next tick is due.

        Args:
            started: When the last one began, monotonic seconds.
        """
        due = started + self._most_s() * self._rng.uniform(0.9, 1.0)
        await asyncio.sleep(self._least_s())
        try:
            async with asyncio.timeout(max(0.0, due - self._now())):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _least_s(self) -> float:
        share_s = min(INTERVAL_S, self._spent_s / MAX_SHARE)
        return max(MIN_PAUSE_S, self._num_gateways / MAX_TICKS_PER_S, share_s)

    def _most_s(self) -> float:
        if self._num_gateways == 1 or not self._is_busy:
            return INTERVAL_S
        return max(BUSY_INTERVAL_S, self._least_s())
