"""A FUSE file system that does what a file tells it: `python fuse_program.py MOUNT BACKING ORDER`.

It shows the files of BACKING, and a million more that are nowhere. ORDER holds one line:
`healthy`, `slow SECONDS`, `hung`, `error` or `empty`.
"""

import errno
import stat
import sys
import time
from pathlib import Path

import fuse

NUM_VIRTUAL = 1_000_000
# Between two looks of a hung call at the orders.
WAIT_S = 0.02


def virtual_name(number: int) -> str:
    """Return the name of one of the million files: LMCache's form, of another model."""
    return f"virtual@0x01000100@0@{number:064x}.data"


def is_virtual(name: str) -> bool:
    """Return whether a name is one of the million."""
    head, _, tail = name.rpartition("@")
    if head != "virtual@0x01000100@0" or not tail.endswith(".data"):
        return False
    return int(tail.removesuffix(".data"), 16) < NUM_VIRTUAL


class Obedient(fuse.Operations):
    """Asks for its orders before each call."""

    def __init__(self, backing: Path, order: Path) -> None:
        self._backing = backing
        self._order = order

    def _obey(self) -> str:
        while True:
            word, _, seconds = self._order.read_text().strip().partition(" ")
            if word == "error":
                raise fuse.FuseOSError(errno.EIO)
            if word == "slow":
                time.sleep(float(seconds))
            if word != "hung":
                return word
            time.sleep(WAIT_S)

    def getattr(self, path: str, fh: int | None = None) -> dict:
        """Serve stat."""
        word = self._obey()
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2, "st_ino": 1}
        name = path.removeprefix("/")
        if word != "empty" and is_virtual(name):
            return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": 28}
        if word == "empty" or not (self._backing / name).is_file():
            raise fuse.FuseOSError(errno.ENOENT)
        size = (self._backing / name).stat().st_size
        return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": size}

    def readdir(self, path: str, fh: int) -> list[str]:
        """Serve a listing."""
        word = self._obey()
        real = [] if word == "empty" else [entry.name for entry in self._backing.iterdir()]
        virtual = () if word == "empty" else map(virtual_name, range(NUM_VIRTUAL))
        return [".", "..", *real, *virtual]


if __name__ == "__main__":
    # fusepy's own: no kernel cache, so that every call asks.
    uncached = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0}
    fuse.FUSE(
        Obedient(Path(sys.argv[2]), Path(sys.argv[3])), sys.argv[1], foreground=True, **uncached
    )
