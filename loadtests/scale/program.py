"""The scale measurement from start to end."""

import argparse
import json
import os
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from loadtests.bench.cpu import cpu_s, tree
from loadtests.demo.children import ChildError, Children, exit_on_signals, wait_until
from loadtests.demo.fleet import ROOT
from loadtests.scale.endpoints import MODEL

# From the issue that asked for this: probing 300 replicas costs less than 5% of one core.
MAX_PROBING_CORES: Final = 0.05
MAX_READY_S: Final = 10.0
DEFAULT_REPLICAS: Final = 300
DEFAULT_SECONDS: Final = 20.0
# After the start: connections are open, and every replica was asked what it is.
_SETTLE_S: Final = 3.0
_DEADLINE_S: Final = 60.0
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured.

    Attributes:
        replicas: All of them ready.
        all_ready_s: From the gateway's start of probing until the last one was.
        idle_cores: CPU of the gateway with nothing but probes to do, in cores.
        resident_mb: Its memory, megabytes.
    """

    replicas: int
    all_ready_s: float
    idle_cores: float
    resident_mb: float

    def missed(self) -> list[str]:
        """Return a line for every goal that is missed."""
        missed = []
        if self.all_ready_s > MAX_READY_S:
            missed.append(f"all ready within {MAX_READY_S:g} s, took {self.all_ready_s:.1f} s")
        if self.idle_cores > MAX_PROBING_CORES:
            figures = f"{MAX_PROBING_CORES} cores, took {self.idle_cores:.3f}"
            missed.append(f"probing costs at most {figures}")
        return missed

    def table(self) -> Table:
        """Return the figures, the goals beside them."""
        shown = Table("", "", "goal", title=f"{self.replicas} replicas", title_justify="left")
        shown.add_row("all ready after", f"{self.all_ready_s:.1f} s", f"<= {MAX_READY_S:g} s")
        cores = f"{self.idle_cores:.3f} cores"
        shown.add_row("CPU of probing", cores, f"<= {MAX_PROBING_CORES} cores")
        shown.add_row("resident memory", f"{self.resident_mb:.0f} MB", "-")
        return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement.

    Returns:
        The exit code: 0, 1 where a goal was missed or something did not start, 130 on Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.scale",
        description="The CPU of a gateway that does nothing but probe many replicas. What a "
        "decision between them costs is measured by tests/bench/test_scale.py.",
    )
    add = parser.add_argument
    add("--replicas", type=int, default=DEFAULT_REPLICAS)
    add("--seconds", type=float, default=DEFAULT_SECONDS, help="of measuring")
    add("--json", type=Path, default=ROOT / "build" / "scale.json", help="for the figures")
    options = parser.parse_args(argv)
    exit_on_signals()
    try:
        found = measure(options.replicas, options.seconds, options.json.parent / "scale")
    except ChildError as error:
        print(f"scale: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    Console().print(found.table())
    missed = found.missed()
    content = {**asdict(found), "missed": missed}
    options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.json}")
    for line in missed:
        print(f"scale: goal: {line}", file=sys.stderr)
    return 1 if missed else 0


def measure(num_replicas: int, seconds: float, folder: Path) -> Found:
    """Start replicas and a gateway, and measure it while it is idle.

    Args:
        num_replicas: Addresses, all in one process.
        seconds: To measure for.
        folder: For logs and the configuration.

    Raises:
        ChildError: Something did not start, or not every replica became ready.
    """
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    with Children(environ, folder) as children:
        count = ["--count", str(num_replicas)]
        argv = [sys.executable, "-m", "loadtests.scale.endpoints", *count]
        urls = children.start("endpoints", argv).wait_ready()["urls"]
        config = folder / "gateway.json"  # JSON is YAML
        config.write_text(json.dumps(_config(urls)), encoding="utf-8")
        argv = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config)]
        gateway = children.start("gateway", argv)
        admin_url = gateway.wait_ready()["admin_url"]
        started = time.monotonic()
        if not wait_until(lambda: _states(admin_url) == {"ready": num_replicas}, _DEADLINE_S):
            raise ChildError(f"not all replicas are ready: {dict(_states(admin_url))}")
        all_ready_s = time.monotonic() - started
        time.sleep(_SETTLE_S)
        pids = tree(gateway.pid)
        before, began = cpu_s(pids), time.monotonic()
        time.sleep(seconds)
        cores = (cpu_s(pids) - before) / (time.monotonic() - began)
        return Found(num_replicas, all_ready_s, cores, _resident_mb(gateway.pid))


def _config(urls: Sequence[str]) -> Mapping[str, Any]:
    loopback = {"host": "127.0.0.1", "port": 0}
    model = {"name": MODEL, "replicas": [{"url": url} for url in urls]}
    return {"listen": loopback, "admin": loopback, "models": [model]}


def _states(admin_url: str) -> Counter[str]:
    status = f"{admin_url}/admin/status"
    with urllib.request.urlopen(status, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - our own child
        models = json.load(answer)["models"]
    return Counter(replica["state"] for model in models for replica in model["replicas"])


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
