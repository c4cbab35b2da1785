"""A real FUSE mount that can be slow, hang and fail."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.simulators import wait_until

# A start of Python on a busy machine takes seconds, and so may its end.
START_DEADLINE_S = 60.0
END_DEADLINE_S = 30.0
PROGRAM = Path(__file__).with_name("fuse_program.py")


@dataclass
class FuseMount:
    """The directory as it is mounted, what is behind it, and its orders."""

    path: Path
    backing: Path
    order_file: Path
    process: subprocess.Popen

    def order(self, words: str) -> None:
        # Replaced in one step: a call that reads it must not see half of it.
        part = self.order_file.with_suffix(".new")
        part.write_text(words)
        part.replace(self.order_file)


def why_no_fuse() -> str | None:
    """Return why no FUSE file system can be mounted here; None where one can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be used"
    try:
        import fuse  # noqa: F401, PLC0415 - it looks for libfuse when it is imported
    except (ImportError, OSError) as error:
        return f"fusepy or libfuse2 is missing: {error}"
    return None


@contextlib.contextmanager
def fuse_mount(folder: Path) -> Iterator[FuseMount]:
    """Mount a healthy file system; skip where that is not possible, and fail with CI=true."""
    reason = why_no_fuse()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    path, backing, order = folder / "mount", folder / "backing", folder / "order"
    path.mkdir()
    backing.mkdir()
    order.write_text("healthy")
    command = [sys.executable, PROGRAM, path, backing, order]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE)
    mount = FuseMount(path, backing, order, process)
    try:
        wait_until(lambda: os.path.ismount(path) or process.poll() is not None, START_DEADLINE_S)
        if process.poll() is not None:
            told = process.stderr.read().decode()
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no mount: {told}")
        yield mount
    finally:
        # What hung goes on, and must not have a million files before it.
        mount.order("empty")
        subprocess.run(["fusermount3", "-uz", str(path)], check=False, capture_output=True)
        process.terminate()
        process.wait(END_DEADLINE_S)
        process.stderr.close()
