"""Requests at a steady rate, whatever the answers do."""

import asyncio
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Steady(ABC):
    """Sends requests at a rate while the block runs; leaving it waits for the last answer.

    Args:
        rate_per_s: Requests a second.
    """

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._sender: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._send())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._sender is not None:
            self._sender.cancel()
        if kind is not None:
            for task in self._asking:
                task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    @abstractmethod
    async def ask(self, number: int) -> None:
        """Send one request, and keep what comes back.

        Args:
            number: Of the request, from 0 on.
        """

    async def _send(self) -> None:
        started = time.monotonic()
        number = 0
        while True:
            task = asyncio.create_task(self.ask(number))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            number += 1
            await asyncio.sleep(started + number / self._rate_per_s - time.monotonic())
