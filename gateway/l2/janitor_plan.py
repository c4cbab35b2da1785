"""What a pool holds, what it may hold, and what has to go for that. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.l2.file_form import TMP_FOLDER, is_temporary, parse_name
from gateway.l2.janitor_ages import AgeHistogram, Cutoff
from gateway.l2.quantities import Share
from routing.value import value

# Once it has begun, it goes on to a tenth below the limit: a pool that is full stays so, and
# sweeps that free one file each would read the whole directory for it.
LOW_RATIO = 0.9
# A chunk is written within a second. This is for clocks of other machines, too.
GRACE_S = 600.0
# Nothing wrote to a temporary file for a day: no mount hangs, and no clock is off, for so long.
LEFTOVER_S = 86400.0


@value
class FileStatus:
    """What the file system says of one entry.

    Attributes:
        num_bytes: Its size.
        written_s: mtime, seconds since 1970.
        named_s: ctime: when it got its name, among others.
        read_s: atime; some mounts never move it.
        regular: Whether it is a file, and no link, directory or device.
        folder: Whether it is a directory.
    """

    num_bytes: int
    written_s: float
    named_s: float
    read_s: float
    regular: bool = True
    folder: bool = False


def is_tmp_folder(name: str, status: FileStatus) -> bool:
    """Return whether an entry of a pool is one writer's directory for temporary files."""
    return status.folder and name.startswith(TMP_FOLDER)


@value
class Space:
    """What statvfs says of the file system.

    Attributes:
        total_bytes: Its size; 0 where it does not tell.
        free_bytes: Of that, for users.
        keeps_atime: False where it is mounted with noatime.
    """

    total_bytes: int
    free_bytes: int
    keeps_atime: bool = True


@value
class Limits:
    """What a directory may hold.

    Attributes:
        max_bytes: Bytes of LMCache's files; None for no limit.
        max_age_s: Since the last use; None for no limit.
        min_free: Of the file system, whoever uses it; None for no limit.
        low_ratio: Where a sweep ends, as a ratio of the limit that began it, in (0, 1].
        grace_s: Files that were written or named less than so long ago are left alone.
        by_access: Whether reading a file counts as its use; else only writing does.
        leftover_s: Temporary files that were not written to for so long have no writer any more.
        folder_s: Empty directories for temporary files go when they were not written to for so
            long; None for never. An engine makes its own at its start only, and cannot store
            without it.
    """

    max_bytes: int | None = None
    max_age_s: float | None = None
    min_free: Share | None = None
    low_ratio: float = LOW_RATIO
    grace_s: float = GRACE_S
    by_access: bool = True
    leftover_s: float = LEFTOVER_S
    folder_s: float | None = None

    def any(self) -> bool:
        """Return whether there is a limit at all."""
        return any(one is not None for one in (self.max_bytes, self.max_age_s, self.min_free))

    def age_s(self, status: FileStatus, now: float) -> float:
        """Return the seconds since a file was used last.

        The later of atime and mtime: a mount that does not keep atime leaves it where it was when
        the file was written, or at nothing.
        """
        used = max(status.read_s, status.written_s) if self.by_access else status.written_s
        return now - used

    def in_grace(self, status: FileStatus, now: float) -> bool:
        """Return whether a file may still be on its way."""
        return _unwritten_s(status, now) < self.grace_s

    def is_leftover(self, status: FileStatus, now: float) -> bool:
        """Return whether a temporary file has no writer any more."""
        return status.regular and _unwritten_s(status, now) >= max(self.leftover_s, self.grace_s)

    def is_unused(self, folder: FileStatus, now: float) -> bool:
        """Return whether a directory for temporary files may go where it is empty."""
        if self.folder_s is None:
            return False
        return _unwritten_s(folder, now) >= max(self.folder_s, self.grace_s)


def _unwritten_s(status: FileStatus, now: float) -> float:
    return now - max(status.written_s, status.named_s)


@dataclass(slots=True)
class Survey:
    """What one pass over a directory found.

    Attributes:
        now: Ages count from here, seconds since 1970.
        space: Of the file system, before the pass.
        files: Of LMCache.
        num_bytes: Of those.
        fresh_files: Of those, in their grace period.
        temporary_files: Being written, or left by a writer that died; also in directories of the
            writers' own.
        temporary_bytes: Of those.
        leftover_files: Of those, without a writer.
        leftover_bytes: Of those.
        unused_folders: Directories of writers that are gone.
        other_files: What LMCache did not write. None of it is ever touched.
        other_bytes: Of those.
        directories: And whatever else is no plain file.
        unreadable: Files of which nothing is told, and directories for temporary files that cannot
            be opened.
        read_files: Files of LMCache that were read after they were written: where there is none,
            the mount does not keep atime, or nobody reads.
        expired_files: Older than the limit.
        expired_bytes: Of those.
        ahead_s: How far in the future the latest write was, by the clock here.
        ages: Of the files that may go.
    """

    now: float
    space: Space
    files: int = 0
    num_bytes: int = 0
    fresh_files: int = 0
    temporary_files: int = 0
    temporary_bytes: int = 0
    leftover_files: int = 0
    leftover_bytes: int = 0
    unused_folders: int = 0
    other_files: int = 0
    other_bytes: int = 0
    directories: int = 0
    unreadable: int = 0
    read_files: int = 0
    expired_files: int = 0
    expired_bytes: int = 0
    ahead_s: float = 0.0
    ages: AgeHistogram = field(default_factory=AgeHistogram)

    def add(
        self, name: str, status: FileStatus, limits: Limits, *, in_folder: bool = False
    ) -> None:
        """Count one entry, of the pool itself or of a directory for temporary files."""
        if not status.regular:
            self.directories += 1
        elif is_temporary(name, in_folder=in_folder):
            self._add_temporary(status, limits)
        elif in_folder or parse_name(name) is None:
            self.other_files += 1
            self.other_bytes += status.num_bytes
        else:
            self._add_chunk(status, limits)

    def _add_temporary(self, status: FileStatus, limits: Limits) -> None:
        self.temporary_files += 1
        self.temporary_bytes += status.num_bytes
        if limits.is_leftover(status, self.now):
            self.leftover_files += 1
            self.leftover_bytes += status.num_bytes

    def _add_chunk(self, status: FileStatus, limits: Limits) -> None:
        self.files += 1
        self.num_bytes += status.num_bytes
        self.read_files += status.read_s > status.written_s
        self.ahead_s = max(self.ahead_s, status.written_s - self.now)
        if limits.in_grace(status, self.now):
            self.fresh_files += 1
            return
        age_s = limits.age_s(status, self.now)
        self.ages.add(age_s, status.num_bytes)
        if limits.max_age_s is not None and age_s > limits.max_age_s:
            self.expired_files += 1
            self.expired_bytes += status.num_bytes


@value
class Plan:
    """What has to go.

    Attributes:
        limits: That it was made for.
        now: As in the survey.
        cutoff: For the bytes; None where there is room.
        files: About so many go.
        num_bytes: About so many.
        excess_bytes: How far the limits on bytes are passed; 0 where they are kept.
        missing_bytes: What may not go (too young) and would have to.
    """

    limits: Limits
    now: float
    cutoff: Cutoff | None
    files: int
    num_bytes: int
    excess_bytes: int
    missing_bytes: int

    def takes(self, status: FileStatus, digest: str) -> bool:
        """Return whether a file of LMCache has to go, by what is known of it now."""
        if not status.regular or self.limits.in_grace(status, self.now):
            return False
        age_s = self.limits.age_s(status, self.now)
        if self.limits.max_age_s is not None and age_s > self.limits.max_age_s:
            return True
        return self.cutoff is not None and self.cutoff.takes(age_s, digest)


def make_plan(survey: Survey, limits: Limits) -> Plan:
    """Return what has to go so that the limits are kept, least recently used first."""
    excess, wanted = _excess(survey, limits)
    files, num_bytes, cutoff = survey.expired_files, survey.expired_bytes, None
    if excess and wanted > num_bytes:
        cutoff = survey.ages.cutoff(wanted)
        files, num_bytes = survey.ages.above(cutoff)
    return Plan(
        limits=limits,
        now=survey.now,
        cutoff=cutoff,
        files=files,
        num_bytes=num_bytes,
        excess_bytes=excess,
        missing_bytes=max(excess - num_bytes, 0),
    )


def _excess(survey: Survey, limits: Limits) -> tuple[int, int]:
    """Return by how much the limits are passed, and how much to free once they are, in bytes."""
    excess = wanted = 0
    if limits.max_bytes is not None and survey.num_bytes > limits.max_bytes:
        excess = survey.num_bytes - limits.max_bytes
        wanted = survey.num_bytes - int(limits.max_bytes * limits.low_ratio)
    # A file system that tells no size (FUSE without statfs) is not one without space.
    if limits.min_free is not None and survey.space.total_bytes > 0:
        least = limits.min_free.of(survey.space.total_bytes)
        if survey.space.free_bytes < least:
            excess = max(excess, least - survey.space.free_bytes)
            wanted = max(wanted, int(least / limits.low_ratio) - survey.space.free_bytes)
    return excess, wanted
