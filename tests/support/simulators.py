"""A simulated replica as its own process."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
# Importing transformers on a busy machine takes seconds.
START_DEADLINE_S = 40.0
STOP_DEADLINE_S = 10.0


@dataclass
class Replica:
    url: str
    kv_events: str | None
    replay: str | None
    process: subprocess.Popen

    def post(self, path, body, **options) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=20.0, **options)

    def get(self, path, **options) -> httpx.Response:
        return httpx.get(self.url + path, timeout=20.0, **options)

    def metric(self, name, **labels) -> float:
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(f"vllm:{name}{{") and all(label in line for label in wanted):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name} {labels}")


@contextlib.contextmanager
def running_replica(*arguments: str) -> Iterator[Replica]:
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtests.simulator", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error::ResourceWarning"},
    )
    try:
        ready = json.loads(first_line(process))
        assert ready["event"] == "ready"
        assert ready["pid"] == process.pid
        yield Replica(ready["url"], ready["kv_events"], ready["replay"], process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_DEADLINE_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def first_line(process) -> str:
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(START_DEADLINE_S), "the simulator did not get ready"
    return process.stdout.readline()


def wait_until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    give_up_at = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up_at, "the condition did not come true"
        time.sleep(0.01)
