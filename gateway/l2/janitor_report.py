"""What the janitor tells: a summary for people, a line for a log, an object for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.l2.janitor import Round
from gateway.l2.janitor_progress import Progress
from gateway.l2.janitor_sweep import Swept
from gateway.l2.quantities import bytes_text, seconds_text

# Clocks that are kept (NTP) differ by less.
_CLOCKS_S = 60.0
# Columns of the bar.
_BAR = 30


def summary(path: str, done: Round) -> Iterator[str]:
    """Yield the lines of a summary."""
    found, plan = done.survey, done.plan
    yield f"{path}: {found.files:,} files of LMCache, {bytes_text(found.num_bytes)}"
    yield f"  last use by     {_clock(done)}"
    if found.files:
        yield f"  oldest          {seconds_text(found.ages.oldest_s())}"
    if found.fresh_files:
        grace = seconds_text(plan.limits.grace_s)
        yield f"  left alone      {found.fresh_files:,} younger than {grace}"
    if found.temporary_files:
        temporary = bytes_text(found.temporary_bytes)
        yield f"  temporary       {found.temporary_files:,}, {temporary}{_left_by_the_dead(done)}"
    if found.other_files:
        other = bytes_text(found.other_bytes)
        yield f"  left alone      {found.other_files:,} not of LMCache, {other}"
    if found.ahead_s > done.duration_s + _CLOCKS_S:
        yield f"  clocks differ   a file was written {seconds_text(found.ahead_s)} in the future"
    if found.unreadable:
        yield f"  FAILED          {found.unreadable:,} could not be looked at"
    if found.space.total_bytes:
        free, total = bytes_text(found.space.free_bytes), bytes_text(found.space.total_bytes)
        yield f"  file system     {free} free of {total}"
    elif plan.limits.min_free is not None:
        yield "  file system     tells no size: --min-free has no effect"
    yield from _leftovers(done)
    yield from _work(done)
    if done.over_bytes:
        yield f"  over the limit  by {bytes_text(done.over_bytes)}{_why_over(done)}"


def _clock(done: Round) -> str:
    if not done.by_access:
        return "mtime, when it was written"
    if done.survey.read_files:
        return f"atime, when it was read ({done.survey.read_files:,} were)"
    return "mtime: no file was read later than it was written, as far as atime tells"


def _left_by_the_dead(done: Round) -> str:
    if not done.survey.leftover_files:
        return ""
    age = seconds_text(max(done.plan.limits.leftover_s, done.plan.limits.grace_s))
    size = bytes_text(done.survey.leftover_bytes)
    return f"; of those {done.survey.leftover_files:,} left by dead writers ({age}), {size}"


def _leftovers(done: Round) -> Iterator[str]:
    found, left = done.survey, done.leftovers
    if left is not None:
        yield from _swept(left, "leftovers")
    elif found.leftover_files or found.unused_folders:
        what = f"{found.leftover_files:,} leftovers, {found.unused_folders:,} empty directories"
        yield f"  WOULD DELETE    {what}; --delete does it"


def _work(done: Round) -> Iterator[str]:
    plan, swept = done.plan, done.swept
    if swept is None:
        if not plan.limits.any():
            yield "  no limit given, nothing to do"
        elif not plan.files:
            yield "  nothing would be deleted"
        else:
            size = bytes_text(plan.num_bytes)
            yield f"  WOULD DELETE    about {plan.files:,} files, {size}; --delete does it"
        return
    yield from _swept(swept, "files")


def _swept(swept: Swept, what: str) -> Iterator[str]:
    yield f"  deleted         {swept.files:,} {what}, {bytes_text(swept.num_bytes)}"
    if swept.folders:
        yield f"  deleted         {swept.folders:,} empty directories"
    if swept.gone:
        yield f"  already gone    {swept.gone:,}"
    if swept.spared:
        yield f"  spared          {swept.spared:,} used meanwhile, or a part of their chunk was"
    if swept.failed:
        yield f"  FAILED          {swept.failed:,}: {swept.first_error}"


def _why_over(done: Round) -> str:
    if done.swept is None:
        return ""
    if done.swept.failed:
        return ""
    return ": the rest is too young, in use, or not LMCache's"


def as_object(path: str, done: Round) -> dict[str, Any]:
    """Return a round for a program to read: sizes in bytes, times in seconds."""
    found, plan, left, swept = done.survey, done.plan, done.leftovers, done.swept
    told: dict[str, Any] = {
        "path": path,
        "files": found.files,
        "bytes": found.num_bytes,
        "fresh_files": found.fresh_files,
        "temporary_files": found.temporary_files,
        "temporary_bytes": found.temporary_bytes,
        "leftover_files": found.leftover_files,
        "leftover_bytes": found.leftover_bytes,
        "unused_folders": found.unused_folders,
        "other_files": found.other_files,
        "other_bytes": found.other_bytes,
        "unreadable": found.unreadable,
        "ahead_s": round(found.ahead_s, 3),
        "oldest_s": found.ages.oldest_s(),
        "last_use_by": "atime" if done.by_access and found.read_files else "mtime",
        "size_bytes": found.space.total_bytes,
        "free_bytes": found.space.free_bytes,
        "planned_files": plan.files,
        "planned_bytes": plan.num_bytes,
        "over_bytes": done.over_bytes,
        "dry_run": swept is None,
        "duration_s": round(done.duration_s, 3),
    }
    if swept is not None:
        told["deleted_files"] = swept.files
        told["deleted_bytes"] = swept.num_bytes
        told["gone_files"] = swept.gone
        told["spared_chunks"] = swept.spared
        told["failed_files"] = swept.failed
        told["first_error"] = swept.first_error
    if left is not None:
        told["deleted_leftover_files"] = left.files
        told["deleted_leftover_bytes"] = left.num_bytes
        told["deleted_folders"] = left.folders
        told["failed_leftovers"] = left.failed
        told["first_leftover_error"] = left.first_error
    return told


def progress_text(path: str, progress: Progress) -> str:
    """Return how far a round is, on one line."""
    if not progress.total:
        return f"{path}: {progress.phase}, {progress.seen:,} entries"
    ratio = min(progress.seen / progress.total, 1.0)
    bar = "#" * round(ratio * _BAR)
    return f"{path}: {progress.phase} [{bar:.<{_BAR}}] {ratio:4.0%}, {progress.seen:,} entries"
