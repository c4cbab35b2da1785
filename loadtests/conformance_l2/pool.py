"""The shared directory as a directory: what files are in it, whoever wrote them."""

import shutil
import time
from collections.abc import Set
from pathlib import Path
from typing import Final

from loadtests.children import wait_until

# LMCache writes behind the answer; 8 files of 6 MB took up to 0.5 s beside a prefill.
_WRITTEN_DEADLINE_S: Final = 20.0
# Nothing new for so long means that nothing more comes.
_QUIET_S: Final = 0.3


class Pool:
    """A directory of LMCache's files.

    Args:
        folder: The directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_empty(self) -> None:
        """Make the directory, without what an earlier run left in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def names(self) -> Set[str]:
        """Return the names of all whole files."""
        return {path.name for path in self.folder.iterdir() if path.suffix == ".data"}

    def num_bytes(self) -> int:
        """Return the size of all whole files."""
        return sum(path.stat().st_size for path in self.folder.glob("*.data"))

    def wait_written(self, before: Set[str], expected: int) -> Set[str]:
        """Return the names that are new, once there are `expected` or no more come.

        Args:
            before: The names that were there.
            expected: How many the prompt should bring.
        """
        state = {"new": -1, "since": time.monotonic()}

        def settled() -> bool:
            number = len(self.names() - before)
            if number != state["new"]:
                state.update(new=number, since=time.monotonic())
            quiet = time.monotonic() - state["since"] >= _QUIET_S
            return quiet and number >= expected

        wait_until(settled, _WRITTEN_DEADLINE_S)
        return self.names() - before
