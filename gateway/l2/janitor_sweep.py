"""The janitor's second pass: what has to go, goes, after one more look at it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.l2.file_form import ParsedName, is_temporary, parse_name, sibling_names
from gateway.l2.janitor_directory import Directory
from gateway.l2.janitor_plan import FileStatus, Limits, Plan, is_tmp_folder
from gateway.l2.janitor_progress import Progress

# After so many deletions in a row that failed (a mount that is read-only, an I/O error) the rest of
# the round would fail as well.
_MAX_FAILURES_IN_A_ROW = 100


@dataclass(slots=True)
class Swept:
    """What a sweep did.

    Attributes:
        files: Deleted.
        num_bytes: Of those.
        folders: Deleted.
        gone: Were to go, and somebody else was faster.
        gone_bytes: Of those.
        spared: Were to go, and were used or written meanwhile, or another part of their chunk was.
        failed: Could not be deleted.
        first_error: Of those.
    """

    files: int = 0
    num_bytes: int = 0
    folders: int = 0
    gone: int = 0
    gone_bytes: int = 0
    spared: int = 0
    failed: int = 0
    first_error: str = ""


class _Removing:
    """Deletes files, and counts what became of them."""

    def __init__(self, progress: Progress, pace: Callable[[], None]) -> None:
        self.done = Swept()
        self.progress = progress
        self.pace = pace
        self._failures_in_a_row = 0

    @property
    def gave_up(self) -> bool:
        """Whether going on has no purpose."""
        return self._failures_in_a_row >= _MAX_FAILURES_IN_A_ROW

    def remove(self, directory: Directory, name: str, num_bytes: int) -> None:
        try:
            removed = directory.remove(name)
        except OSError as error:
            self.failed(error)
            return
        self.progress.beat()
        self._failures_in_a_row = 0
        if removed:
            self.done.files += 1
            self.done.num_bytes += num_bytes
        else:
            self.gone(num_bytes)

    def gone(self, num_bytes: int) -> None:
        self.done.gone += 1
        self.done.gone_bytes += num_bytes

    def failed(self, error: OSError) -> None:
        self.done.failed += 1
        self._failures_in_a_row += 1
        self.done.first_error = self.done.first_error or f"{error.strerror or error}"


class Sweep:
    """Deletes the chunks that a plan says.

    Args:
        directory: Read once more.
        plan: What has to go.
        progress: Told of each entry.
        pace: Called before each chunk; waits.
    """

    def __init__(
        self, directory: Directory, plan: Plan, progress: Progress, pace: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._removing = _Removing(progress, pace)

    def run(self, total: int) -> Swept:
        """Read the directory and delete.

        Args:
            total: Entries that it had, for the progress.

        Raises:
            OSError: The directory cannot be read.
            Stopped: The process is to end.
        """
        progress = self._removing.progress
        progress.begin("sweep", total)
        for name, status in self._directory.entries():
            progress.step()
            parsed = parse_name(name) if status is not None else None
            if status is None or parsed is None or not self._plan.takes(status, parsed.digest):
                continue
            self._remove_chunk(name, status, parsed)
            if self._removing.gave_up:
                break
        return self._removing.done

    def _remove_chunk(self, name: str, status: FileStatus, parsed: ParsedName) -> None:
        removing = self._removing
        removing.pace()
        try:
            parts = list(self._parts(name, parsed))
        except OSError as error:
            removing.failed(error)
            return
        if not any(part == name for part, _ in parts):
            removing.gone(status.num_bytes)
        elif not all(self._plan.takes(now, parsed.digest) for _, now in parts):
            removing.done.spared += 1
        else:
            for part, now in parts:
                removing.remove(self._directory, part, now.num_bytes)

    def _parts(self, name: str, parsed: ParsedName) -> Iterator[tuple[str, FileStatus]]:
        """Yield the files of a chunk that are there, with what is known of them right now."""
        for part in (name, *sibling_names(name, parsed)):
            status = self._directory.status(part)
            self._removing.progress.beat()
            if status is not None:
                yield part, status


class LeftoverSweep:
    """Deletes what writers that died left: temporary files, and their directories.

    Args:
        directory: Read once more, with the directories for temporary files in it.
        limits: For the ages.
        now: Seconds since 1970, as in the survey.
        progress: Told of each entry.
        pace: Called before each deletion; waits.
    """

    def __init__(
        self,
        directory: Directory,
        limits: Limits,
        now: float,
        progress: Progress,
        pace: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._now = now
        self._removing = _Removing(progress, pace)

    def run(self, total: int) -> Swept:
        """Read the directory and delete; arguments and errors are those of `Sweep.run`."""
        removing = self._removing
        removing.progress.begin("leftovers", total)
        for name, status in self._directory.entries():
            removing.progress.step()
            if status is None:
                continue
            if is_tmp_folder(name, status):
                self._look_into(name, status)
            elif is_temporary(name, in_folder=False):
                self._take(self._directory, name, status)
            if removing.gave_up:
                break
        return removing.done

    def _look_into(self, name: str, status: FileStatus) -> None:
        empty = True
        try:
            with self._directory.inside(name) as folder:
                for inner, inner_status in folder.entries():
                    self._removing.progress.beat()
                    empty = False
                    if inner_status is not None and is_temporary(inner, in_folder=True):
                        self._take(folder, inner, inner_status)
                    if self._removing.gave_up:
                        return
        except OSError:
            return  # another janitor was faster, or the survey told that it cannot be read
        # One in which a file was deleted just now was empty for a moment only.
        if empty and self._limits.is_unused(status, self._now):
            self._remove_folder(name)

    def _remove_folder(self, name: str) -> None:
        removing = self._removing
        removing.pace()
        try:
            removing.done.folders += self._directory.remove_folder(name)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                removing.done.spared += 1
            else:
                removing.failed(error)

    def _take(self, directory: Directory, name: str, status: FileStatus) -> None:
        if not self._limits.is_leftover(status, self._now):
            return
        self._removing.pace()
        try:
            now = directory.status(name)
        except OSError as error:
            self._removing.failed(error)
            return
        if now is None:
            self._removing.gone(status.num_bytes)
        elif self._limits.is_leftover(now, self._now):
            self._removing.remove(directory, name, now.num_bytes)
        else:
            self._removing.done.spared += 1
