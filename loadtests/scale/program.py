"""The scale measurement from start to end."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from loadtests.children import ChildError, Children, wait_until
from loadtests.goals import Findings, Line, at_most
from loadtests.measurement import Measurement, Report
from loadtests.programs import environment, fetch, start_gateway
from loadtests.scale.endpoints import MODEL
from loadtests.usage import cpu_s, resident_bytes, tree

# From the issue that asked for this: probing 300 replicas costs less than 5% of one core.
MAX_PROBING_CORES: Final = 0.05
MAX_READY_S: Final = 10.0
DEFAULT_REPLICAS: Final = 300
DEFAULT_SECONDS: Final = 20.0
# After the start: connections are open, and every replica was asked what it is.
_SETTLE_S: Final = 3.0
_DEADLINE_S: Final = 60.0


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

    def findings(self) -> Findings:
        """Return the figures beside their goals."""
        lines = [
            at_most("all ready after", self.all_ready_s, MAX_READY_S, form=".1f"),
            at_most("CPU of probing", self.idle_cores, MAX_PROBING_CORES, "cores", ".3f"),
            Line("resident memory", f"{self.resident_mb:.0f} MB"),
        ]
        return Findings(f"{self.replicas} replicas", lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement, and return its exit code."""
    program = Measurement(
        "loadtests.scale",
        "The CPU of a gateway that does nothing but probe many replicas. What a decision between "
        "them costs is measured by tests/bench/test_scale.py.",
    )
    add = program.options.add_argument
    add("--replicas", type=int, default=DEFAULT_REPLICAS)
    add("--seconds", type=float, default=DEFAULT_SECONDS, help="of measuring")
    return program.run(argv, _report)


def _report(options: argparse.Namespace, folder: Path) -> Report:
    found = measure(options.replicas, options.seconds, folder)
    findings = found.findings()
    Console().print(findings.table())
    return Report(asdict(found), findings.missed())


def measure(num_replicas: int, seconds: float, folder: Path) -> Found:
    """Start replicas and a gateway, and measure it while it is idle.

    Args:
        num_replicas: Addresses, all in one process.
        seconds: To measure for.
        folder: For logs and the configuration.

    Raises:
        ChildError: Something did not start, or not every replica became ready.
    """
    with Children(environment(), folder) as children:
        count = ["--count", str(num_replicas)]
        argv = [sys.executable, "-m", "loadtests.scale.endpoints", *count]
        urls = children.start("endpoints", argv).wait_ready()["urls"]
        model = {"name": MODEL, "replicas": [{"url": url} for url in urls]}
        gateway = start_gateway(children, "gateway", {"models": [model]})
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
        return Found(num_replicas, all_ready_s, cores, resident_bytes(gateway.pid) / 1e6)


def _states(admin_url: str) -> Counter[str]:
    models = json.loads(fetch(f"{admin_url}/admin/status"))["models"]
    return Counter(replica["state"] for model in models for replica in model["replicas"])
