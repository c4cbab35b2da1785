"""One round of the janitor: look at a directory, and delete what it may no longer hold.

LMCache's fs connector never deletes, and a pool that is full fails every write. Two passes read the
directory: the first counts, the second deletes. No pass keeps a name, so a million files cost as
much memory as a hundred. Where engines died while they wrote, a pass in between deletes what they
left. Janitors need not know of each other: docs/adr/0036.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.l2.janitor_directory import Directory, Refused
from gateway.l2.janitor_plan import FileStatus, Limits, Plan, Survey, is_tmp_folder, make_plan
from gateway.l2.janitor_progress import Progress
from gateway.l2.janitor_sweep import LeftoverSweep, Sweep, Swept


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
            found.unreadable += 1
        elif is_tmp_folder(name, status):
            _survey_folder(directory, name, status, found, limits, progress)
        else:
            found.add(name, status, limits)
    if found.other_files and not (found.files or found.temporary_files or force):
        raise Refused(
            f"it holds {found.other_files} files, and none with a name of LMCache's: is it the "
            "right directory? --force takes it all the same"
        )
    return found


def _survey_folder(
    directory: Directory,
    name: str,
    status: FileStatus,
    found: Survey,
    limits: Limits,
    progress: Progress,
) -> None:
    empty = True
    try:
        with directory.inside(name) as folder:
            for inner, inner_status in folder.entries():
                progress.beat()
                empty = False
                if inner_status is None:
                    found.unreadable += 1
                else:
                    found.add(inner, inner_status, limits, in_folder=True)
    except FileNotFoundError:
        return  # another janitor was faster
    except OSError:
        found.unreadable += 1
        return
    found.directories += 1
    found.unused_folders += empty and limits.is_unused(status, found.now)


@dataclass(frozen=True, slots=True)
class Round:
    """What a round found and did.

    Attributes:
        survey: Before.
        plan: What had to go.
        leftovers: What dead writers left, and went; None where there was nothing, or in a dry run.
        swept: What went of the chunks; None in a dry run.
        by_access: Whether reading counted as a use.
        duration_s: Of the whole round.
    """

    survey: Survey
    plan: Plan
    leftovers: Swept | None
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
        """Whether not all could be looked at, or it did not get as far as the limits want."""
        if self.survey.unreadable > 0:
            return True
        if self.leftovers is not None and self.leftovers.failed > 0:
            return True
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
        total = progress.seen
        left = None
        if self.delete and (found.leftover_files or found.unused_folders):
            left = LeftoverSweep(directory, limits, started, progress, self.pace).run(total)
            # The room that this made is not to be made once more by chunks.
            plan = make_plan(replace(found, space=directory.space()), limits)
        else:
            plan = make_plan(found, limits)
        swept = None
        if self.delete and plan.files:
            swept = Sweep(directory, plan, progress, self.pace).run(total)
        elif self.delete:
            swept = Swept()
        return Round(found, plan, left, swept, limits.by_access, self.clock() - started)

    def _limits_for(self, directory: Directory) -> Limits:
        if not self.limits.by_access or directory.space().keeps_atime:
            return self.limits
        return replace(self.limits, by_access=False)
