"""A gateway as its own process: for memory, environment and file descriptors."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.replicas import until

ROOT = Path(__file__).parents[2]
# Importing everything on a busy machine takes seconds.
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 15.0


@dataclass
class GatewayProcess:
    process: subprocess.Popen
    log: Path
    url: str = ""
    admin_url: str = ""

    def lines(self) -> list[dict]:
        whole = self.log.read_text().rpartition("\n")[0]  # what is being written is not
        return [json.loads(line) for line in whole.splitlines() if line]

    def resident_bytes(self) -> int:
        return self._memory("VmRSS")

    def peak_bytes(self) -> int:
        return self._memory("VmHWM")

    def forget_peak(self) -> int:
        """Let the peak begin again from what is resident now, and return that."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.resident_bytes()

    async def in_flight(self) -> int:
        async with httpx.AsyncClient(base_url=self.admin_url, trust_env=False) as admin:
            models = (await admin.get("/admin/status")).json()["models"]
        return sum(replica["in_flight"] for model in models for replica in model["replicas"])

    def _memory(self, key) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{key}:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024


@contextlib.asynccontextmanager
async def gateway_process(folder: Path, config: dict, environ=None):
    """Run `warmroute serve` on free ports; ready when its replicas are."""
    here = {"host": "127.0.0.1", "port": 0}
    values = {"listen": here, "admin": here, "health": {"interval_s": 0.1}, **config}
    (folder / "gateway.json").write_text(json.dumps(values))  # JSON is YAML
    log = folder / "gateway.log"
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: ASYNC220 - forks once, before anything is measured
            [sys.executable, "-m", "gateway.cli", "serve", "--config", folder / "gateway.json"],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **(environ or {}), "PYTHONUNBUFFERED": "1"},
        )
    running = GatewayProcess(process, log)
    try:
        await _started(running)
        async with httpx.AsyncClient(base_url=running.url, trust_env=False) as client:
            await until(lambda: _ready(client), "readiness")
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_DEADLINE_S)
        finally:
            process.kill()
            process.wait()


async def _started(running):
    give_up_at = time.monotonic() + START_DEADLINE_S
    while True:
        assert running.process.poll() is None, running.log.read_text()
        assert time.monotonic() < give_up_at, running.log.read_text()
        ready = [line for line in running.lines() if line["event"] == "ready"]
        if ready:
            running.url, running.admin_url = ready[0]["url"], ready[0]["admin_url"]
            return
        await asyncio.sleep(0.02)


async def _ready(client):
    return (await client.get("/readyz")).status_code == 200
