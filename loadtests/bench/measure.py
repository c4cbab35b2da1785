"""One run of one scenario against one gateway."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.bench import native
from loadtests.bench.gateways import Running
from loadtests.bench.native import Programs
from loadtests.bench.scenarios import PATH, Scenario
from loadtests.programs import fetch
from loadtests.usage import cpu_s, tree


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run measured.

    Attributes:
        done: Answers that were whole and 2xx.
        errors: Answers that were not, came short of events or never ended, and requests that
            reached a replica twice.
        events: `data:` lines received.
        reads: Times that the client's socket had something.
        cpu_s: CPU seconds of the gateway's process tree.
        seconds: Length of the run.
        p50_s: Median time to a whole answer; None where nothing was done.
        p99_s: The same at the 99th percentile.
    """

    done: int
    errors: int
    events: int
    reads: int
    cpu_s: float
    seconds: float
    p50_s: float | None
    p99_s: float | None


def measure(
    gateway: Running,
    scenario: Scenario,
    seconds: float,
    programs: Programs,
    mock_urls: Sequence[str],
) -> Sample:
    """Load a gateway for some seconds.

    Raises:
        NativeError: The load generator failed: the gateway is gone, for one.
    """
    pids = tree(gateway.child.pid)
    sent_before, cpu_before = _num_requests(mock_urls), cpu_s(pids)
    found = native.run(
        programs.lg,
        [gateway.port, PATH, scenario.body, scenario.connections, seconds, scenario.events],
    )
    used_s = cpu_s(pids) - cpu_before
    answered = found["done"] + found["errors"] + found["unfinished"]
    sent_twice = max(0, _num_requests(mock_urls) - sent_before - answered)
    latency = found["latency_s"] or {"p50": None, "p99": None}
    return Sample(
        done=found["done"],
        errors=found["errors"] + found["unfinished"] + found["short"] + sent_twice,
        events=found["events"],
        reads=found["reads"],
        cpu_s=used_s,
        seconds=found["seconds"],
        p50_s=latency["p50"],
        p99_s=latency["p99"],
    )


def _num_requests(mock_urls: Sequence[str]) -> int:
    return sum(json.loads(fetch(f"{url}/_count"))["requests"] for url in mock_urls)
