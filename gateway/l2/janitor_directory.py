"""The directory that a janitor keeps: the few calls that it makes of the file system.

All go by one open directory, so that a path that is renamed or remounted under them leads to an
error and not elsewhere. None follows a link. Any of them may block for as long as the mount hangs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from gateway.l2.janitor_plan import FileStatus, Space

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """A directory is not one that a janitor works on."""


class Directory(Protocol):
    """What a janitor needs of a directory."""

    def entries(self) -> Iterator[tuple[str, FileStatus | None]]:
        """Yield names and what is known of them, one by one; None for an entry that cannot be read.

        Raises:
            OSError: The directory cannot be read.
        """

    def status(self, name: str) -> FileStatus | None:
        """Return what is known of one entry now; None where it is gone.

        Raises:
            OSError: It cannot be read.
        """

    def remove(self, name: str) -> bool:
        """Delete one entry; False where it was gone.

        Raises:
            OSError: It could not be deleted.
        """

    def inside(self, name: str) -> AbstractContextManager[Directory]:
        """Open a directory in this one.

        Raises:
            OSError: It cannot be opened, or is a link.
        """

    def remove_folder(self, name: str) -> bool:
        """Delete a directory in this one that is empty; False where it was gone.

        Raises:
            OSError: It could not be deleted, or is not empty.
        """

    def space(self) -> Space:
        """Return the size of the file system.

        Raises:
            OSError: It cannot be read.
        """


class RealDirectory:
    """A directory of the machine. Made by `open_directory`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def entries(self) -> Iterator[tuple[str, FileStatus | None]]:
        """See `Directory`; an entry that goes away meanwhile is left out."""
        with os.scandir(self._fd) as found:
            for entry in found:
                try:
                    yield entry.name, _status(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue
                except OSError:
                    yield entry.name, None

    def status(self, name: str) -> FileStatus | None:
        """See `Directory`."""
        try:
            return _status(os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> bool:
        """See `Directory`."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def inside(self, name: str) -> Iterator[RealDirectory]:
        """See `Directory`."""
        fd = os.open(name, _FLAGS, dir_fd=self._fd)
        try:
            yield RealDirectory(fd)
        finally:
            os.close(fd)

    def remove_folder(self, name: str) -> bool:
        """See `Directory`."""
        try:
            os.rmdir(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def space(self) -> Space:
        """See `Directory`."""
        said = os.fstatvfs(self._fd)
        return Space(
            total_bytes=said.f_blocks * said.f_frsize,
            free_bytes=said.f_bavail * said.f_frsize,
            keeps_atime=not said.f_flag & os.ST_NOATIME,
        )


@contextmanager
def open_directory(path: str) -> Iterator[RealDirectory]:
    """Open a directory.

    Args:
        path: Not `/`, no link, nothing but a directory.

    Raises:
        Refused: It is one of those.
        OSError: The file system does not let it be opened.
    """
    if os.path.realpath(path) == "/":
        raise Refused(f"{path} is the root of the file system")
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError as error:
        raise Refused(f"{path} is not there") from error
    except NotADirectoryError as error:
        # What Linux says of a link with these flags, too.
        raise Refused(f"{path} is no directory; of a link give what it leads to") from error
    try:
        yield RealDirectory(fd)
    finally:
        os.close(fd)


def _status(said: os.stat_result) -> FileStatus:
    return FileStatus(
        num_bytes=said.st_size,
        written_s=said.st_mtime,
        named_s=said.st_ctime,
        read_s=said.st_atime,
        regular=stat.S_ISREG(said.st_mode),
        folder=stat.S_ISDIR(said.st_mode),
    )
