"""The three small C programs: compiled when they are needed, as Python would cost too much CPU.

On 2 cores what makes the load and what answers it must leave the cores to the gateway between.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.measurement import MeasurementError

SOURCES: Final = Path(__file__).with_name("native")
_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
# The longest run is the soak's, about half a minute; what takes longer hangs.
_RUN_DEADLINE_S: Final = 120.0


class NativeError(MeasurementError):
    """No compiler, a compiler that failed, or a program that did: one line."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths of the compiled programs; the head of each C file says what it takes and prints."""

    mock: Path
    lg: Path
    streams: Path


def build(folder: Path) -> Programs:
    """Compile the programs into a folder; a second or two.

    Raises:
        NativeError: There is no C compiler, or it refused a source.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise NativeError("a C compiler (cc) is missing. Debian, Ubuntu: apt-get install gcc")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("mock", "lg", "streams"):
        argv = [compiler, *_FLAGS, "-o", str(folder / name), str(SOURCES / f"{name}.c")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
        if done.returncode:
            raise NativeError(f"{name}.c does not compile: {done.stderr.strip()}")
    return Programs(folder / "mock", folder / "lg", folder / "streams")


def run(program: Path, arguments: Sequence[object]) -> dict[str, Any]:
    """Run a load generator to its end and return the JSON that it prints.

    Raises:
        NativeError: It failed, or did not end.
    """
    argv = [str(program), *map(str, arguments)]
    try:
        done = subprocess.run(  # noqa: S603 - our own program, no shell
            argv, capture_output=True, text=True, check=False, timeout=_RUN_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        raise NativeError(f"{program.name} did not end in {_RUN_DEADLINE_S:g} s") from None
    if done.returncode:
        raise NativeError(f"{program.name} failed: {done.stderr.strip()}")
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed
