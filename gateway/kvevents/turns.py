"""Lets KV events be worked on beside requests: one slice at a time, and requests after each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

# Work between two looks at requests. A step takes half of this at most, and the sum of both has to
# stay below 2 ms, which a stream's client does not notice.
SLICE_S = 1e-3
# Replays of all that an engine remembers at once. Each comes as fast as the network is and waits
# here for its turns: vLLM's 10,000 batches of 20 blocks are 43 MB, and 300 of them 13 GB. A replica
# that does not answer keeps its place for 2 s, so 300 of these delay the others by 40 s at most.
MAX_WHOLE_REPLAYS = 16
# Replays at once of what a flood or a long pause left out. Each is as large as a whole one, and two
# at once are not worked on any faster.
MAX_LONG_REPLAYS = 1


class Turns:
    """The turns of all KV event streams of a gateway.

    However many streams have work, one of them works for one slice, and then the event loop serves
    everything else that is ready before the next one does.

    Args:
        now: Monotonic seconds.

    Attributes:
        whole_replays: Held during each replay from the first batch on.
        long_replays: Held during each replay that fills a long gap.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.whole_replays = asyncio.Semaphore(MAX_WHOLE_REPLAYS)
        self.long_replays = asyncio.Semaphore(MAX_LONG_REPLAYS)
        self._now = now
        self._lock = asyncio.Lock()
        self._until = 0.0

    async def run(self, steps: Iterator[object]) -> None:
        """Take all steps, in as many slices as that needs.

        Args:
            steps: Works between two items, for half a slice at most.
        """
        is_done = False
        while not is_done:
            async with self._lock:
                if self._now() >= self._until:
                    await asyncio.sleep(0)
                    self._until = self._now() + SLICE_S
                is_done = self._work(steps)

    def _work(self, steps: Iterator[object]) -> bool:
        """Work to the end of the slice; True where there is nothing left to do."""
        return all(self._now() < self._until for _ in steps)
