"""Tells when a file has new content that is whole.

Files are polled, not watched by inotify: a ConfigMap's file is a link to a link into a folder that
is swapped, network mounts send no events, and a poll that was missed heals with the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look at the file found.

    The content itself and not its time and size: a file system's clock ticks every few
    milliseconds, and 300 replicas are read in 20 microseconds.
    """

    inode: int
    content: bytes


class WatchedFile:
    """One file, looked at again and again.

    A file whose inode is new was renamed or linked into place whole, and counts at once. One that
    changes in place may still be half written, and counts at the next look that finds the same.

    Args:
        path: Of the file; links are followed anew each time.
        max_bytes: Further bytes are not read; the content then has one more, so that it shows.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._problem: str | None = None
        self._just_lost = False
        self._taken: _Seen | None = None
        self._may_be_half = False

    @property
    def problem(self) -> str | None:
        """Why it could not be read at the last look; None where it could."""
        return self._problem

    @property
    def just_lost(self) -> bool:
        """Whether the last look was the first of several that could not read it."""
        return self._just_lost

    def look(self) -> bytes | None:
        """Return the content where it is news, the first time too; else None."""
        was_there = self._problem is None
        seen = self._read()
        self._just_lost = was_there and self._problem is not None
        if seen is None:
            self._taken, self._may_be_half = None, False  # the same file is news when it is back
            return None
        if seen == self._taken:
            self._may_be_half = False
            return None
        in_place = self._taken is not None and self._taken.inode == seen.inode
        self._may_be_half = in_place and not self._may_be_half
        if self._may_be_half:
            return None
        self._taken = seen
        return seen.content

    def _read(self) -> _Seen | None:
        try:
            with self.path.open("rb") as stream:
                self._problem = None
                inode = os.fstat(stream.fileno()).st_ino
                return _Seen(inode, stream.read(self._max_bytes + 1))
        except OSError as error:
            reason = (error.strerror or "unknown reason").lower()
            self._problem = f"{self.path}: cannot be read: {reason}"
            return None


class WatchedFiles:
    """Several files of which only a change counts; which ones may change too.

    Args:
        max_bytes: See `WatchedFile`.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._file_by_path: dict[Path, WatchedFile] = {}

    def look(self, paths: Iterable[Path]) -> bool:
        """Return whether one of these files has changed since it was looked at for the first time.

        Args:
            paths: Those that count now; the others are forgotten.
        """
        before, self._file_by_path = self._file_by_path, {}
        changed = False
        for path in paths:
            file = before.get(path)
            if file is not None:
                changed |= file.look() is not None
            else:
                file = WatchedFile(path, self._max_bytes)
                file.look()
            self._file_by_path[path] = file
        return changed
