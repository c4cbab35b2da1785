"""Keeps running what goes on beside requests: a task that nobody waits for must not end in silence.

Whatever fails outside is waited out by the task itself. What comes up to here is a bug, or an error
that nobody foresaw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

from gateway.observability.background_metrics import BackgroundMetrics
from gateway.observability.logging import EventLog, crash_fields

# Before the first try again: a bug in the first thing that a task does must not be a busy loop.
FIRST_PAUSE_S = 1.0
# The pause doubles up to this: a KV event stream begins with a replay of all that a replica holds,
# which once a minute is no load. A run that lasted longer was well.
LONGEST_PAUSE_S = 60.0


class Work(StrEnum):
    """What a task does; also its metrics label."""

    RELOAD = "reload"
    KEYS = "keys"
    DISCOVERY = "discovery"
    DISCOVERY_PROBLEMS = "discovery_problems"
    PROBE = "probe"
    KV_EVENTS = "kv_events"
    REDIS = "redis"
    EXCHANGE = "exchange"
    INDEX_WRITER = "index_writer"
    SHARED_CACHE = "shared_cache"
    SHARED_STORAGE = "shared_storage"


class Crashes:
    """The crashes of one task: each is counted, and told unless there was one a moment ago.

    Args:
        work: What the task does.
        name: Tells it from others of its kind.
        log: Gets one line when it begins to crash, and no more until it was well in between.
        metrics: Counts every crash.
    """

    def __init__(self, work: Work, name: str, log: EventLog, metrics: BackgroundMetrics) -> None:
        self._work = work
        self._name = name
        self._log = log
        self._counter = metrics.crashes.labels(work.value)
        self._resumed_at: float | None = None

    async def survive(self, step: Awaitable[None]) -> bool:
        """Await one of the steps of a task that goes on at once, whatever a bug did to this one.

        Returns:
            Whether it did not crash.
        """
        try:
            await step
        except Exception as error:  # noqa: BLE001 - noted
            self.note(error)
            return False
        return True

    def note(self, error: BaseException) -> bool:
        """Note a crash.

        Returns:
            Whether it was told: the first one, and where the task was well since the last.
        """
        self._counter.inc()
        now, resumed_at = asyncio.get_running_loop().time(), self._resumed_at
        self._resumed_at = now
        is_news = resumed_at is None or now - resumed_at > LONGEST_PAUSE_S
        if is_news:
            told = crash_fields(error)
            self._log.error("task_crashed", task=self._work.value, name=self._name, **told)
        return is_news

    def resume(self) -> None:
        """Note that the task goes on only now."""
        self._resumed_at = asyncio.get_running_loop().time()


class Background:
    """Starts tasks that last, and starts them again after a crash.

    Args:
        log: Told of crashes; see `Crashes`.
        metrics: Counts every crash.
    """

    def __init__(self, log: EventLog, metrics: BackgroundMetrics) -> None:
        self._log = log
        self._metrics = metrics
        for work in Work:
            metrics.crashes.labels(work.value)  # a rate needs the 0 before the first one

    def crashes(self, work: Work, name: str = "") -> Crashes:
        """Return where a task notes its crashes that goes on at once after them."""
        return Crashes(work, name, self._log, self._metrics)

    def start(
        self, work: Work, run: Callable[[], Awaitable[None]], name: str = ""
    ) -> asyncio.Task[None]:
        """Run something until it returns or is cancelled, and again after each crash.

        Args:
            work: What it does.
            run: Begins it; called again after a crash, so it must begin from what is left then.
            name: Tells it from others of its kind; neither secret nor a client's.

        Returns:
            The task, for the caller to keep and to cancel.
        """
        return asyncio.create_task(self._keep(work, run, name), name=f"{work} {name}".rstrip())

    async def _keep(self, work: Work, run: Callable[[], Awaitable[None]], name: str) -> None:
        crashes, pause_s = self.crashes(work, name), 0.0
        while True:
            try:
                return await run()
            except (Exception, asyncio.CancelledError) as error:
                is_stopping = _is_stopping()
                if is_stopping and isinstance(error, asyncio.CancelledError):
                    raise
                if crashes.note(error):
                    pause_s = 0.0
                if is_stopping:
                    return None
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            crashes.resume()


def _is_stopping() -> bool:
    """Return whether the current task was cancelled; else a future that it awaited was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
