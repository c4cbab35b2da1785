"""Looks into a directory that may hang, so that nobody waits for it but a few threads.

A FUSE mount whose server is away answers no system call, and a thread inside one cannot be stopped.
So look-ups run in a few threads of their own: while one is late the mount is down and nothing is
sent there, and one more thread, which asks for the directory itself, brings it back
(docs/adr/0034).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gateway.threads import Threads

T = TypeVar("T")

# Between two looks at the directory itself.
PROBE_INTERVAL_S = 1.0
# The same while it is down: back within a second or two, and no load worth the name.
DOWN_INTERVAL_S = 0.5
# Good probes in a row until look-ups begin again: one can be luck.
GOOD_PROBES = 2

_Identity = tuple[tuple[int, int], ...]


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
        down_problem: What the system said of it; empty where it said nothing.
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
        self.down_problem = ""
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
        timer = asyncio.get_running_loop().call_later(self._stall_s, self._late, future)
        future.add_done_callback(lambda done: self._looked(done, timer))
        return future

    def _late(self, future: asyncio.Future[T]) -> None:
        # It may have returned while our own loop was held up: then the mount is not to blame.
        if not future.done():
            self._down("slow")

    def _looked(self, done: asyncio.Future[T], timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        error = None if done.cancelled() else done.exception()
        if isinstance(error, OSError):
            self.counts.errors += 1
            self._down("error", error)

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
            self._down("missing" if isinstance(error, FileNotFoundError) else "error", error)
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

    def _down(self, reason: str, error: BaseException | None = None) -> None:
        self._num_good = 0
        was_up = self.down_reason in (None, "not_probed")
        self.down_reason = reason
        self.down_problem = str(getattr(error, "strerror", None) or error or "")
        if was_up:
            self.counts.downs[reason] += 1
            self._on_change("down")
