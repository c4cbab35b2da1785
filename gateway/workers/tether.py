"""Ties a process to the one that started it, so that none outlives its supervisor.

`python -m gateway.workers.tether PARENT PROGRAM ARGUMENT...` becomes PROGRAM, tied.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

# From linux/prctl.h. Kept across exec, unless the program changes its user.
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Let the kernel kill this process as soon as its parent ends, also by kill -9.

    Args:
        parent: Process id of whoever started this process; ends at once where it is gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(0)


def main(arguments: Sequence[str]) -> None:
    """Tie this process, and become another program."""
    parent, *command = arguments
    end_with(int(parent))
    os.execv(command[0], command)  # noqa: S606 - our own supervisor's command, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
