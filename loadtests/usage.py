"""CPU and memory of processes, from Linux' /proc."""

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
# Fields behind the command's name, which may hold blanks: proc(5), /proc/pid/stat.
_PARENT: Final = 1
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (fields := _fields(int(entry.name))):
            children.setdefault(int(fields[_PARENT]), []).append(int(entry.name))
    found = [pid]
    for member in found:  # grows while it is walked
        found += children.get(member, [])
    return found


def cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds, user and system, that living processes have used so far."""
    ticks = 0
    for pid in pids:
        if fields := _fields(pid):
            ticks += int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the memory that a living process has.

    Raises:
        OSError: It is gone.
    """
    pages = int((_PROC / str(pid) / "statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _fields(pid: int) -> list[str]:
    """Return the fields behind the command's name; none for a process that is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
