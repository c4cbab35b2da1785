"""The rounds of `warmroute l2-janitor`, one after the other, and telling what becomes of them."""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TextIO

from gateway.l2.janitor import Janitor, Round
from gateway.l2.janitor_directory import open_directory
from gateway.l2.janitor_plan import Limits
from gateway.l2.janitor_report import as_object, progress_text, summary
from gateway.l2.janitor_watch import Keeper, Outcome, Patience, pace
from gateway.l2.quantities import seconds_text
from gateway.observability.janitor_metrics import JanitorMetrics, served

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_HUNG = 3

# Between two lines about one round.
_HEARTBEAT_S = 30.0
_BAR_S = 0.2


def run(given: argparse.Namespace, out: TextIO, err: TextIO) -> int:
    """Run the command until it is done or told to stop.

    Args:
        given: Parsed arguments.
        out: Gets a summary or an object for each round.
        err: Gets progress and what is wrong.

    Returns:
        The exit code.
    """
    limits = Limits(
        max_bytes=given.max_bytes,
        max_age_s=given.max_age,
        min_free=given.min_free,
        low_ratio=given.low,
        grace_s=given.grace,
        by_access=given.by == "access",
        leftover_s=given.leftover,
        folder_s=given.folders,
    )
    if given.delete and not limits.any():
        err.write(
            "warmroute l2-janitor: --delete needs a limit: --max-bytes, --max-age, --min-free\n"
        )
        return EXIT_USAGE
    stop = threading.Event()
    metrics = JanitorMetrics()
    metrics.dry_run.set(not given.delete)
    janitor = Janitor(limits, time.time, pace(given.rate, stop), given.delete, given.force)
    patience = Patience(stall_s=given.stall, give_up_s=given.give_up)
    keepers = [Keeper(path, janitor, open_directory, patience) for path in given.paths]
    for keeper in keepers:
        keeper.progress.stop = stop
    teller = Teller(out, err, metrics, as_json=given.json, bar=err.isatty())
    with ExitStack() as stack:
        stack.enter_context(_signals(stop))
        if given.metrics_port is not None:
            try:
                stack.enter_context(served(metrics, given.metrics_host, given.metrics_port))
            except OSError as error:
                err.write(f"warmroute l2-janitor: cannot serve metrics: {error.strerror}\n")
                return EXIT_FAILED
        return _rounds(keepers, teller, stop, None if given.once else given.interval)


class Teller:
    """Tells what becomes of rounds, to people, programs and Prometheus.

    Args:
        out: Summaries or objects.
        err: Progress, and what is wrong.
        metrics: Set from each round.
        as_json: Objects in place of summaries.
        bar: `err` is a terminal: progress is drawn in place.
    """

    def __init__(
        self, out: TextIO, err: TextIO, metrics: JanitorMetrics, *, as_json: bool, bar: bool
    ) -> None:
        self._out = out
        self._err = err
        self._metrics = metrics
        self._as_json = as_json
        self._bar = bar

    def watch(self, keeper: Keeper) -> Outcome:
        """Wait for a round, telling how far it is and when its mount hangs."""
        told_at, stalled = time.monotonic(), keeper.outcome.hung_s > 0
        self._metrics.stalled.labels(keeper.path).set(stalled)
        for silent_s in keeper.watch():
            if bool(silent_s) != stalled:
                stalled = bool(silent_s)
                self._metrics.stalled.labels(keeper.path).set(stalled)
                self._note(keeper.path, f"no answer for {seconds_text(silent_s)}, the mount hangs"
                           if stalled else "the mount answers again")  # fmt: skip
            now = time.monotonic()
            if self._bar and now - told_at >= _BAR_S:
                self._err.write(f"\r\x1b[K{progress_text(keeper.path, keeper.progress)}")
            elif now - told_at >= _HEARTBEAT_S:
                self._err.write(f"{progress_text(keeper.path, keeper.progress)}\n")
            else:
                continue
            self._err.flush()
            told_at = now
        if self._bar:
            self._err.write("\r\x1b[K")
        return self._told(keeper)

    def _told(self, keeper: Keeper) -> Outcome:
        path, outcome = keeper.path, keeper.outcome
        self._metrics.stalled.labels(path).set(outcome.hung_s > 0)
        if outcome.round is not None:
            self._measured(path, outcome.round)
            lines = summary(path, outcome.round)
            text = [json.dumps(as_object(path, outcome.round))] if self._as_json else lines
            self._out.writelines(f"{line}\n" for line in text)
            self._out.flush()
        elif outcome.refused:
            self._note(path, outcome.refused)
        elif outcome.problem:
            self._metrics.failures.labels(path).inc()
            self._note(path, outcome.problem)
        elif outcome.hung_s and not keeper.progress.stop.is_set():
            self._metrics.failures.labels(path).inc()
            self._note(path, f"no answer for {seconds_text(outcome.hung_s)}, given up for now")
        return outcome

    def _note(self, path: str, text: str) -> None:
        self._err.write(f"warmroute l2-janitor: {path}: {text}\n")
        self._err.flush()

    def _measured(self, path: str, done: Round) -> None:
        found, metrics = done.survey, self._metrics
        for kind, files, num_bytes in (
            ("lmcache", found.files, found.num_bytes),
            ("temporary", found.temporary_files, found.temporary_bytes),
            ("leftover", found.leftover_files, found.leftover_bytes),
            ("other", found.other_files, found.other_bytes),
            ("unreadable", found.unreadable, 0),
        ):
            metrics.files.labels(path, kind).set(files)
            metrics.bytes.labels(path, kind).set(num_bytes)
        metrics.oldest.labels(path).set(found.ages.oldest_s())
        metrics.size.labels(path).set(found.space.total_bytes)
        metrics.free.labels(path).set(found.space.free_bytes)
        metrics.over.labels(path).set(done.over_bytes)
        metrics.round_s.labels(path).set(done.duration_s)
        metrics.finished.labels(path).set(time.time())
        for swept in (done.leftovers, done.swept):
            if swept is not None:
                metrics.deleted_files.labels(path).inc(swept.files)
                metrics.deleted_bytes.labels(path).inc(swept.num_bytes)
                metrics.failures.labels(path).inc(swept.failed)


def _rounds(
    keepers: list[Keeper], teller: Teller, stop: threading.Event, interval_s: float | None
) -> int:
    first = True
    while True:
        outcomes = [teller.watch(keeper) for keeper in keepers if not stop.is_set()]
        # A directory that turns out to be the wrong one is a mistake of the command; that it is
        # gone for a while later on is not.
        if first and any(outcome.refused for outcome in outcomes):
            return EXIT_USAGE
        if interval_s is None:
            return EXIT_OK if stop.is_set() else _status(outcomes)
        first = False
        if stop.wait(interval_s):
            return EXIT_OK


def _status(outcomes: list[Outcome]) -> int:
    if any(outcome.hung_s for outcome in outcomes):
        return EXIT_HUNG
    failed = any(one.problem or (one.round is not None and one.round.failed) for one in outcomes)
    return EXIT_FAILED if failed else EXIT_OK


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the round at its next entry."""
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
