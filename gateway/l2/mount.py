"""Looks into a directory that may hang, so that nobody waits for it but a few threads.

A FUSE mount whose server is away answers no system call, and a thread inside one cannot be stopped.
So look-ups run in a few threads of their own: while one is late the mount is down and nothing is
sent there, and one more thread, which asks for the directory itself, brings it back
(docs/adr/0034).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

# Between two looks at the directory itself.
PROBE_INTERVAL_S = 1.0
# The same while it is down: back within a second or two, and no load worth the name.
DOWN_INTERVAL_S = 0.5
# Good probes in a row until look-ups begin again: one can be luck.
GOOD_PROBES = 2

_Identity = tuple[tuple[int, int], ...]


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

        # A closed loop: the gateway ended before the mount answered.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(tell)


class Threads:
    """A few daemon threads; what does not find a free one is refused, never queued.

    The standard library's executors are joined when the process ends, and so would wait for a
    mount that hangs.

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
            self._num_started += 1
            name = f"{self._name}-{self._num_started}"
            Thread(target=self._work, name=name, daemon=True).start()
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


@dataclass(slots=True)
class MountCounts:
    """What happened to a mount.

    Attributes:
        downs: Times that it was marked down, by why.
        refused: Look-ups that found it down, or all threads busy.
        errors: System calls that failed for another reason than that there is no such file.
    """

    downs: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    errors: int = 0


class Mount:
    """One or several directories of one pool.

    Args:
        paths: The directories.
        num_threads: Look-ups at once at most.
        stall_s: Seconds after which a call that has not returned marks the mount down.
        on_change: Called when it goes down or comes back, and when another file system or an empty
            directory took its place.

    Attributes:
        down_reason: Why it is down, in one word; None while it is up.
        counts: For metrics.
    """

    def __init__(
        self,
        paths: Sequence[str],
        num_threads: int,
        stall_s: float,
        on_change: Callable[[str], None],
    ) -> None:
        self.paths = tuple(paths)
        self._stall_s = stall_s
        self._on_change = on_change
        self._lookers = Threads(num_threads, "l2-look")
        self._prober = Threads(1, "l2-probe")
        self._lister = Threads(1, "l2-list")
        self._identity: _Identity | None = None
        self._num_good = 0
        self.down_reason: str | None = "not_probed"
        self.counts = MountCounts()

    @property
    def num_threads_busy(self) -> int:
        """Threads inside a call, those that hang included."""
        return self._lookers.num_busy + self._prober.num_busy + self._lister.num_busy

    def look(self, run: Callable[[], T]) -> asyncio.Future[T] | None:
        """Look something up in a thread.

        Args:
            run: Makes system calls on the paths; an `OSError` that it raises marks the mount down.

        Returns:
            The result to come, which may never come; None where the mount is down or all threads
            are busy.
        """
        future = None if self.down_reason else self._lookers.submit(run)
        if future is None:
            self.counts.refused += 1
            return None
        timer = asyncio.get_running_loop().call_later(self._stall_s, self._down, "slow")
        future.add_done_callback(lambda done: self._looked(done, timer))
        return future

    def _looked(self, done: asyncio.Future[T], timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        if not done.cancelled() and isinstance(done.exception(), OSError):
            self.counts.errors += 1
            self._down("error")

    async def watch(self) -> None:
        """Probe the directories for ever, and so notice that they hang or are back."""
        while True:
            was_late = await self.probe()
            if not was_late:  # one that just came back is asked again at once
                await asyncio.sleep(DOWN_INTERVAL_S if self.down_reason else PROBE_INTERVAL_S)

    async def probe(self) -> bool:
        """Look at the directories once, however long that takes.

        Returns:
            Whether it took longer than a mount that is up may.
        """
        future = self._prober.submit(self._identify)
        if future is None:
            return False
        done, _ = await asyncio.wait({future}, timeout=self._stall_s)
        if not done:
            self._down("slow")
            await asyncio.wait({future})
        self._probed(future, late=not done)
        return not done

    async def ask(self, run: Callable[[], T]) -> T | None:
        """Run something long, such as a listing, in a thread of its own.

        How long it takes says nothing about the mount: to list a million files takes seconds.

        Returns:
            What it returned; None where the mount is down, or the call failed.
        """
        future = None if self.down_reason else self._lister.submit(run)
        if future is None:
            return None
        await asyncio.wait({future})
        return None if future.exception() is not None else future.result()

    def close(self) -> None:
        """Let the threads end."""
        self._lookers.close()
        self._prober.close()
        self._lister.close()

    def _identify(self) -> _Identity:
        told = [Path(path).stat() for path in self.paths]
        return tuple((one.st_dev, one.st_ino) for one in told)

    def _probed(self, future: asyncio.Future[_Identity], *, late: bool) -> None:
        error = future.exception()
        if error is not None:
            self.counts.errors += 1
            self._down("missing" if isinstance(error, FileNotFoundError) else "error")
            return
        if late:
            return
        self._num_good += 1
        identity, before = future.result(), self._identity
        self._identity = identity
        if before is not None and identity != before:
            self._on_change("replaced")
        # The first time there is nothing to distrust.
        enough = GOOD_PROBES if self.counts.downs else 1
        if self.down_reason is not None and self._num_good >= enough:
            self.down_reason = None
            self._on_change("up")

    def _down(self, reason: str) -> None:
        self._num_good = 0
        if self.down_reason in (None, "not_probed"):
            self.counts.downs[reason] += 1
            self.down_reason = reason
            self._on_change("down")
