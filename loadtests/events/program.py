"""The measurement of KV events from start to end."""

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from loadtests.children import ChildError, Children, wait_until
from loadtests.demo.figures import percentile
from loadtests.events.probe import Probe
from loadtests.events.upstream import MODEL
from loadtests.goals import Findings, Line, at_most
from loadtests.measurement import Measurement, Report
from loadtests.programs import environment, fetch, start_gateway
from loadtests.usage import cpu_s, resident_bytes

# From the issue that asked for this.
MIN_BLOCKS_S: Final = 150_000
MAX_ENTRY_BYTES: Final = 200
# Half as much again: where entries come and go, dictionaries make their tables for three times as
# many.
MAX_CHURNED_BYTES: Final = 300
# Each replaces every block. What grows with the first one stays as it is with further ones.
NUM_GENERATIONS: Final = 4
# A stream's client does not notice 5 ms; in a flood that fills the core, 20 ms are what case E118
# allows.
MAX_ADDED_MS: Final = 5.0
MAX_ADDED_IN_FLOOD_MS: Final = 20.0
# Eight replicas of the reference profile: 410,000 tokens of KV each, in blocks of 16.
DEFAULT_REPLICAS: Final = 8
DEFAULT_BLOCKS: Final = 25_600
# Eight engines that each prefill 25,600 tokens a second store as many.
_PACED_BLOCKS_S: Final = 50_000
_BASELINE_S: Final = 3.0
_DEADLINE_S: Final = 60.0
# A page of metrics costs the gateway some milliseconds, so it is asked for seldom.
_LOOK_INTERVAL_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured.

    Attributes:
        blocks: (block, replica) pairs at any time.
        blocks_s: Blocks stored and removed for each second of the gateway's CPU, in the flood.
        entry_bytes: Memory of the whole process that each pair took, of the second half of them.
        churned_bytes: The same, and what the process grew by while all blocks were replaced
            `NUM_GENERATIONS` times, 50,000 a second, so that none wait in the sockets' buffers.
        p99_s: Of requests without events.
        paced_p99_s: Of requests beside 50,000 blocks a second.
        flood_p99_s: Of requests while events come as fast as they can be taken.
    """

    blocks: int
    blocks_s: float
    entry_bytes: float
    churned_bytes: float
    p99_s: float
    paced_p99_s: float
    flood_p99_s: float

    def findings(self, num_replicas: int) -> Findings:
        """Return the figures beside their goals."""
        paced_ms = 1e3 * (self.paced_p99_s - self.p99_s)
        flood_ms = 1e3 * (self.flood_p99_s - self.p99_s)
        generations = f"the same after {NUM_GENERATIONS} generations"
        return Findings(
            f"{self.blocks:,} blocks of {num_replicas} replicas",
            [
                Line(
                    "blocks a second of CPU",
                    f"{self.blocks_s:,.0f}",
                    f">= {MIN_BLOCKS_S:,}",
                    self.blocks_s >= MIN_BLOCKS_S,
                ),
                at_most(
                    "memory a (block, replica)", self.entry_bytes, MAX_ENTRY_BYTES, "bytes", ".0f"
                ),
                at_most(generations, self.churned_bytes, MAX_CHURNED_BYTES, "bytes", ".0f"),
                Line("p99 of a request, no events", f"{1e3 * self.p99_s:.1f} ms"),
                at_most(
                    f"added by {_PACED_BLOCKS_S:,} blocks/s", paced_ms, MAX_ADDED_MS, "ms", "+.1f"
                ),
                at_most("added by a flood", flood_ms, MAX_ADDED_IN_FLOOD_MS, "ms", "+.1f"),
            ],
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement, and return its exit code."""
    program = Measurement("loadtests.events", "What taking in KV events costs a gateway.")
    add = program.options.add_argument
    add("--replicas", type=int, default=DEFAULT_REPLICAS)
    add("--blocks", type=int, default=DEFAULT_BLOCKS, help="of each replica")
    return program.run(argv, _report)


def _report(options: argparse.Namespace, folder: Path) -> Report:
    found = measure(options.replicas, options.blocks, folder)
    findings = found.findings(options.replicas)
    Console().print(findings.table())
    return Report(asdict(found), findings.missed())


def measure(num_replicas: int, num_blocks: int, folder: Path) -> Found:
    """Start replicas, their publishers and a gateway; fill its index, then replace all of it.

    Args:
        num_replicas: Each with events of its own.
        num_blocks: Blocks that each one holds.
        folder: For logs and the configuration.

    Raises:
        ChildError: Something did not start, or events did not arrive.
    """
    with Children(environment(), folder) as children:
        python, count = [sys.executable, "-m"], ["--count", str(num_replicas)]
        upstream = children.start("upstream", [*python, "loadtests.events.upstream", *count])
        argv = [*python, "loadtests.events.publisher", *count, "--blocks", str(num_blocks)]
        published = children.start("publisher", argv).wait_ready()
        config = _config(upstream.wait_ready()["urls"], published["sources"])
        gateway = start_gateway(children, "gateway", config)
        ready = gateway.wait_ready()
        run = _Run(ready["url"], ready["admin_url"], gateway.pid, published["control_port"])
        if not wait_until(lambda: run.num_following() == num_replicas, _DEADLINE_S):
            raise ChildError("the gateway does not follow all publishers")
        return run.measure(num_replicas * num_blocks)


@dataclass(frozen=True, slots=True)
class _Run:
    url: str
    admin_url: str
    pid: int
    control_port: int

    def measure(self, num_blocks: int) -> Found:
        with Probe(self.url) as quiet:
            time.sleep(_BASELINE_S)
        with Probe(self.url) as paced:
            self._publish("fill", _PACED_BLOCKS_S)
            self._wait(lambda: self._metric("kv_event_blocks") == num_blocks // 2)
        # What the first half left behind in buffers is no longer counted to the entries.
        memory = resident_bytes(self.pid)
        self._publish("fill_up", _PACED_BLOCKS_S)
        self._wait(lambda: self._metric("kv_event_blocks") == num_blocks)
        full = resident_bytes(self.pid)
        batches = self._metric("kv_event_batches")
        for number in range(NUM_GENERATIONS):
            self._publish(("churn", "churn_back")[number % 2], _PACED_BLOCKS_S)
            self._wait_for_batches((2 + number) * batches)
        grown = resident_bytes(self.pid) - full
        took_s = cpu_s([self.pid])
        with Probe(self.url) as flood:
            self._publish("churn", 0)
            self._wait_for_batches((2 + NUM_GENERATIONS) * batches)
        took_s = cpu_s([self.pid]) - took_s
        entry_bytes = (full - memory) / (num_blocks // 2)
        return Found(
            blocks=num_blocks,
            blocks_s=2 * num_blocks / took_s,  # each stored, and one removed for it
            entry_bytes=entry_bytes,
            churned_bytes=entry_bytes + grown / num_blocks,
            p99_s=percentile(quiet.took_s, 99),
            paced_p99_s=percentile(paced.took_s, 99),
            flood_p99_s=percentile(flood.took_s, 99),
        )

    def num_following(self) -> int:
        models = json.loads(fetch(f"{self.admin_url}/admin/status"))["models"]
        return sum(replica["follows_events"] for model in models for replica in model["replicas"])

    def _publish(self, phase: str, blocks_s: int) -> None:
        """Have a phase published, and wait until all of it was sent."""
        with socket.create_connection(("127.0.0.1", self.control_port)) as control:
            control.sendall(f"{phase} {blocks_s}\n".encode())
            control.recv(1)

    def _wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _DEADLINE_S
        while not condition():
            if time.monotonic() > until:
                raise ChildError("not all events were applied")
            time.sleep(_LOOK_INTERVAL_S)

    def _wait_for_batches(self, count: float) -> None:
        self._wait(lambda: self._metric("kv_event_batches") >= count)

    def _metric(self, name: str) -> float:
        """Return a metric, summed over all replicas."""
        lines = fetch(f"{self.admin_url}/metrics").decode().splitlines()
        wanted = f"warmroute_{name}{{"
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))


def _config(urls: Sequence[str], sources: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
    pairs = zip(urls, sources, strict=True)
    replicas = [{"url": url, "kv_events": source} for url, source in pairs]
    model = {"name": MODEL, "replicas": replicas}
    return {"models": [model], "logging": {"requests": False}}
