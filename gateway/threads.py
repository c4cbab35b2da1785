"""Threads that are in nobody's way: neither of the process's end nor of the event loop.

The standard library's executors are joined when the process ends. A thread inside a call to a mount
whose server is away cannot be stopped, and one that asks a hub which does not answer tries for
minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread, get_native_id
from typing import Any, TypeVar

T = TypeVar("T")

# A third of the event loop's weight where both want one core (the kernel's table of weights).
_NICER_BY = 5


def give_way() -> None:
    """Have this thread wait for the event loop's where cores are scarce.

    Only Linux has priorities of threads. A lower one needs no permission.
    """
    if sys.platform == "linux":
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, get_native_id(), nice + _NICER_BY)


@dataclass(slots=True, eq=False)
class _Job:
    run: Callable[[], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    on_end: Callable[[], None]

    def work(self) -> None:
        """Run in a thread, and tell the loop."""
        result: Any = None
        error: BaseException | None = None
        try:
            result = self.run()
        except BaseException as raised:  # noqa: BLE001 - it is the waiting side's
            error = raised

        def tell() -> None:
            self.on_end()
            if self.future.done():
                return
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)

        # A closed loop: the gateway ended before this did.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(tell)


class Threads:
    """A few daemon threads; what does not find a free one is refused, never queued.

    Args:
        count: At most.
        name: Of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._num_started = 0
        self.num_busy = 0

    def submit(self, run: Callable[[], T]) -> asyncio.Future[T] | None:
        """Run something in a thread; None where all of them are busy."""
        if self.num_busy >= self._count:
            return None
        if self.num_busy == self._num_started:
            name = f"{self._name}-{self._num_started + 1}"
            Thread(target=self._work, name=name, daemon=True).start()
            self._num_started += 1
        self.num_busy += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(run, future, loop, self._ended))
        return future

    def close(self) -> None:
        """Let idle threads end; those that hang end with the process."""
        for _ in range(self._num_started):
            self._jobs.put(None)

    def _ended(self) -> None:
        self.num_busy -= 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.work()


async def run_apart(work: Callable[[], T], name: str) -> T:
    """Run something in a thread of its own, and return its result.

    Args:
        work: Is not stopped where the wait is cancelled.
        name: Of the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    job = _Job(work, future, loop, lambda: None)
    Thread(target=job.work, name=name, daemon=True).start()
    return await future
