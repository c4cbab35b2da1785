"""The supervisor's private folder, and those of supervisors that were killed.

Sockets of the workers and of the shared server lie there. A supervisor that ends removes its own;
of one that got kill -9 the next one does. Whether it still runs, a lock says that the kernel lets
go of with the process: process ids come again, and containers that share a folder have their own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "warmroute-"
_LOCK = "supervisor.lock"


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder that only this user may enter, and remove what dead supervisors left.

    Yields:
        The folder; it is removed with all that is in it when the context ends.
    """
    _remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:  # 0700
        folder = Path(name)
        with (folder / "new").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Named once it is held, so that nobody can find it free.
            (folder / "new").rename(folder / _LOCK)
            yield folder


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        # What is another user's, a link, gone meanwhile, or on a file system without locks, stays.
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid() and _is_left(folder / _LOCK):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(lock: Path) -> bool:
    """Return whether nobody holds a lock that somebody held.

    Raises:
        OSError: There is no such lock.
    """
    fd = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
