"""A simulated replica as its own process."""

import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx

from tests.support.replicas import WAIT_S
from tests.support.simulator_program import simulate

ROOT = Path(__file__).parents[2]
# Importing transformers takes 3 s, and on a busy machine ten times that.
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 10.0


@dataclass
class Replica:
    url: str
    kv_events: str | None
    replay: str | None
    process: BaseProcess

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


# Most of a start is the import of transformers; processes that are forked after it share it.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.simulator_program"])


@contextlib.contextmanager
def running_replica(*arguments: str) -> Iterator[Replica]:
    told, telling = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=simulate, args=(arguments, telling))
    process.start()
    telling.close()
    try:
        assert told.poll(START_DEADLINE_S), "the simulator did not get ready"
        ready = json.loads(os.read(told.fileno(), 65_536))
        assert ready["event"] == "ready"
        assert ready["pid"] == process.pid
        yield Replica(ready["url"], ready["kv_events"], ready["replay"], process)
    finally:
        process.terminate()
        process.join(STOP_DEADLINE_S)
        process.kill()
        process.join()
        process.close()
        told.close()


def wait_until(condition: Callable[[], bool], deadline_s: float = WAIT_S) -> None:
    give_up_at = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up_at, "the condition did not come true"
        time.sleep(0.01)
