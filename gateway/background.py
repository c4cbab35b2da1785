"""Keeps running what goes on beside requests: a task that nobody waits for must not end in silence.

Whatever fails outside is waited out by the task itself. What comes up to here is a bug, or an error
that nobody foresaw.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from enum import StrEnum

from gateway.observability.background_metrics import BackgroundMetrics
from gateway.observability.logging import EventLog

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
    INDEX_WRITER = "index_writer"
    SHARED_CACHE = "shared_cache"
    SHARED_STORAGE = "shared_storage"


class Background:
    """Starts tasks that last, and starts them again after a crash.

    Args:
        log: Gets one line when a task begins to crash, and no more until it was well in between.
        metrics: Counts every crash.
    """

    def __init__(self, log: EventLog, metrics: BackgroundMetrics) -> None:
        self._log = log
        self._metrics = metrics
        for work in Work:
            metrics.crashes.labels(work.value)  # a rate needs the 0 before the first one

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
        loop, pause_s = asyncio.get_running_loop(), 0.0
        while True:
            begun_at = loop.time()
            try:
                return await run()
            except (Exception, asyncio.CancelledError) as error:
                is_stopping = _is_stopping()
                if is_stopping and isinstance(error, asyncio.CancelledError):
                    raise
                if loop.time() - begun_at > LONGEST_PAUSE_S:
                    pause_s = 0.0
                self._metrics.crashes.labels(work.value).inc()
                if not pause_s:
                    self._tell(work, name, error)
                if is_stopping:
                    return None
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
            await asyncio.sleep(pause_s)

    def _tell(self, work: Work, name: str, error: BaseException) -> None:
        """Tell of a crash without the exception's text, which may quote a key or a prompt."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._log.error(
            "task_crashed",
            task=work.value,
            name=name,
            error=type(error).__name__,
            errno=getattr(error, "errno", None),
            traceback="".join(traceback.format_tb(error.__traceback__)),
        )


def _is_stopping() -> bool:
    """Return whether the current task was cancelled; else a future that it awaited was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
