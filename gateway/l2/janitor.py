"""One round of the janitor: look at a directory, and delete what it may no longer hold.

LMCache's fs connector never deletes, and a pool that is full fails every write. Two passes read the
directory: the first counts, the second deletes. No pass keeps a name, so a million files cost as
much memory as a hundred. Janitors need not know of each other: docs/adr/0036.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from gateway.l2.file_form import ParsedName, parse_name, sibling_names
from gateway.l2.janitor_directory import Directory, Refused
from gateway.l2.janitor_plan import FileStatus, Limits, Plan, Survey, make_plan

# After so many deletions in a row that failed (a mount that is read-only, an I/O error) the rest of
# the round would fail as well.
_MAX_FAILURES_IN_A_ROW = 100


class Stopped(Exception):
    """The process is to end."""


@dataclass(slots=True)
class Progress:
    """How far a round is; written by the thread that works, read by the one that watches.

    Attributes:
        phase: `survey` or `sweep`.
        seen: Entries in this phase.
        total: Entries that this phase will see; 0 where it is not known yet.
        beats: Calls that came back, over all rounds: while it stands still the mount hangs.
        stop: Set to end the round at the next entry.
    """

    phase: str = "survey"
    seen: int = 0
    total: int = 0
    beats: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def begin(self, phase: str, total: int = 0) -> None:
        """Enter a phase."""
        self.phase, self.seen, self.total = phase, 0, total

    def step(self) -> None:
        """Count an entry.

        Raises:
            Stopped: The process is to end.
        """
        self.seen += 1
        self.beat()

    def beat(self) -> None:
        """Count a call that came back.

        Raises:
            Stopped: The process is to end.
        """
        self.beats += 1
        if self.stop.is_set():
            raise Stopped


@dataclass(slots=True)
class Swept:
    """What a sweep did.

    Attributes:
        files: Deleted.
        num_bytes: Of those.
        gone: Were to go, and somebody else was faster.
        gone_bytes: Of those.
        spared: Were to go, and were used or written meanwhile, or another part of their chunk was.
        failed: Could not be deleted.
        first_error: Of those.
    """

    files: int = 0
    num_bytes: int = 0
    gone: int = 0
    gone_bytes: int = 0
    spared: int = 0
    failed: int = 0
    first_error: str = ""


def survey(
    directory: Directory, limits: Limits, now: float, progress: Progress, *, force: bool
) -> Survey:
    """Count what a directory holds.

    Args:
        directory: Read once.
        limits: For the grace period, and what counts as a use.
        now: Seconds since 1970.
        progress: Told of each entry.
        force: Accept a directory that holds files, and none of them LMCache's.

    Raises:
        Refused: It is such a one.
        OSError: It cannot be read.
        Stopped: The process is to end.
    """
    progress.begin("survey")
    found = Survey(now=now, space=directory.space())
    for name, status in directory.entries():
        progress.step()
        if status is None:
            found.other_files += 1
        else:
            found.add(name, status, limits)
    if found.other_files and not (found.files or found.temporary_files or force):
        raise Refused(
            f"it holds {found.other_files} files, and none with a name of LMCache's: is it the "
            "right directory? --force takes it all the same"
        )
    return found


class Sweep:
    """Deletes what a plan says.

    Args:
        directory: Read once more.
        plan: What has to go.
        progress: Told of each entry.
        pace: Called before each deletion; waits.
    """

    def __init__(
        self, directory: Directory, plan: Plan, progress: Progress, pace: Callable[[], None]
    ) -> None:
        self.done = Swept()
        self._directory = directory
        self._plan = plan
        self._progress = progress
        self._pace = pace
        self._failures_in_a_row = 0

    def run(self, total: int) -> Swept:
        """Read the directory and delete.

        Args:
            total: Entries that it had, for the progress.

        Raises:
            OSError: The directory cannot be read.
            Stopped: The process is to end.
        """
        self._progress.begin("sweep", total)
        for name, status in self._directory.entries():
            self._progress.step()
            parsed = parse_name(name) if status is not None else None
            if status is None or parsed is None or not self._plan.takes(status, parsed.digest):
                continue
            self._remove_chunk(name, status, parsed)
            if self._failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
                break
        return self.done

    def _remove_chunk(self, name: str, status: FileStatus, parsed: ParsedName) -> None:
        self._pace()
        try:
            parts = list(self._parts(name, parsed))
        except OSError as error:
            self._failed(error)
            return
        if not any(part == name for part, _ in parts):
            self.done.gone += 1
            self.done.gone_bytes += status.num_bytes
        elif not all(self._plan.takes(now, parsed.digest) for _, now in parts):
            self.done.spared += 1
        else:
            for part, now in parts:
                self._remove(part, now.num_bytes)

    def _parts(self, name: str, parsed: ParsedName) -> Iterator[tuple[str, FileStatus]]:
        """Yield the files of a chunk that are there, with what is known of them right now."""
        for part in (name, *sibling_names(name, parsed)):
            status = self._directory.status(part)
            self._progress.beat()
            if status is not None:
                yield part, status

    def _remove(self, name: str, num_bytes: int) -> None:
        try:
            removed = self._directory.remove(name)
        except OSError as error:
            self._failed(error)
            return
        self._progress.beat()
        self._failures_in_a_row = 0
        if removed:
            self.done.files += 1
            self.done.num_bytes += num_bytes
        else:
            self.done.gone += 1
            self.done.gone_bytes += num_bytes

    def _failed(self, error: OSError) -> None:
        self.done.failed += 1
        self._failures_in_a_row += 1
        self.done.first_error = self.done.first_error or f"{error.strerror or error}"


@dataclass(frozen=True, slots=True)
class Round:
    """What a round found and did.

    Attributes:
        survey: Before.
        plan: What had to go.
        swept: What went; None in a dry run, and where nothing had to go.
        by_access: Whether reading counted as a use.
        duration_s: Of the whole round.
    """

    survey: Survey
    plan: Plan
    swept: Swept | None
    by_access: bool
    duration_s: float

    @property
    def over_bytes(self) -> int:
        """By how many bytes the limits are passed now."""
        if self.swept is None:
            return self.plan.excess_bytes
        freed = self.swept.num_bytes + self.swept.gone_bytes
        return max(self.plan.excess_bytes - freed, 0)

    @property
    def failed(self) -> bool:
        """Whether it deleted, and did not get as far as the limits want."""
        return self.swept is not None and (self.swept.failed > 0 or self.over_bytes > 0)


@dataclass(frozen=True, slots=True)
class Janitor:
    """Keeps directories within limits.

    Attributes:
        limits: The same for each directory.
        clock: Seconds since 1970.
        pace: Called before each deletion; waits.
        delete: Whether to delete, or only to say what would go.
        force: See `survey`.
    """

    limits: Limits
    clock: Callable[[], float]
    pace: Callable[[], None]
    delete: bool
    force: bool = False

    def run(self, directory: Directory, progress: Progress) -> Round:
        """Do one round.

        Raises:
            Refused: The directory is not one for a janitor.
            OSError: It cannot be read.
            Stopped: The process is to end.
        """
        started = self.clock()
        limits = self._limits_for(directory)
        found = survey(directory, limits, started, progress, force=self.force)
        plan = make_plan(found, limits)
        swept = None
        if self.delete and plan.files:
            total = found.files + found.other_files + found.temporary_files + found.directories
            swept = Sweep(directory, plan, progress, self.pace).run(total)
        elif self.delete:
            swept = Swept()
        return Round(found, plan, swept, limits.by_access, self.clock() - started)

    def _limits_for(self, directory: Directory) -> Limits:
        if not self.limits.by_access or directory.space().keeps_atime:
            return self.limits
        return replace(self.limits, by_access=False)
