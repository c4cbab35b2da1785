"""`warmroute serve --workers N` as real processes, seen from outside."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.simulators import wait_until

ROOT = Path(__file__).parents[2]
# Importing everything in several processes on a busy machine takes seconds.
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
COMMAND = (sys.executable, "-m", "gateway.cli", "serve")
CHAT = "/v1/chat/completions"


@dataclass
class RunningCrew:
    """A supervisor and its workers.

    Attributes:
        process: The supervisor.
        file: The configuration, JSON.
        log: What they wrote.
    """

    process: subprocess.Popen
    file: Path
    log: Path
    url: str = ""
    admin_url: str = ""

    def lines(self, event: str) -> list[dict]:
        whole = self.log.read_text().rpartition("\n")[0].splitlines()
        lines = [json.loads(line) for line in whole if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def admin(self, path, method="GET", **options) -> httpx.Response:
        return httpx.request(method, self.admin_url + path, timeout=20.0, **options)

    def status(self) -> dict:
        return self.admin("/admin/status").json()

    def worker(self, number) -> dict:
        return self.status()["workers"][number]

    def metric(self, start) -> float:
        page = self.admin("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in page if line.startswith(start))

    def all_serve(self) -> bool:
        status = self.status()
        server = status.get("shared_server", {"state": "serving"})
        return {one["state"] for one in [*status["workers"], server]} == {"serving"}

    def chat(self, body=None) -> httpx.Response:
        """Send a chat on a connection of its own."""
        asked = body or {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        return httpx.post(self.url + CHAT, json={"model": "demo-model", **asked}, timeout=20.0)

    def by_all(self, number=2) -> list[httpx.Response]:
        """Send chats until each worker had one, as its log tells; return all answers."""
        before = len(self.lines("request"))
        answers = []

        def all_had_one():
            answers.append(self.chat())
            return len({line["worker"] for line in self.lines("request")[before:]}) == number

        wait_until(all_had_one)
        return answers

    def write(self, **changes) -> None:
        """Change the configuration file."""
        values = {**json.loads(self.file.read_text()), **changes}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(values))
        new.rename(self.file)


@contextlib.contextmanager
def running_crew(folder: Path, config: dict, workers=2) -> Iterator[RunningCrew]:
    """Run a supervisor; ready when each worker has a replica that is."""
    here = {"host": "127.0.0.1", "port": 0}
    file, log = folder / "gateway.json", folder / "gateway.log"
    file.write_text(json.dumps({"listen": here, "admin": here, **config}))  # JSON is YAML
    command = [*COMMAND, "--config", str(file), "--workers", str(workers)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    crew = RunningCrew(process, file, log)
    try:
        wait_until(lambda: crew.lines("ready") or process.poll() is not None, START_DEADLINE_S)
        assert crew.lines("ready"), log.read_text()
        ready = crew.lines("ready")[0]
        crew.url, crew.admin_url = ready["url"], ready["admin_url"]
        wait_until(lambda: crew.admin("/readyz").status_code == 200)
        wait_until(lambda: {answer.status_code for answer in crew.by_all(workers)} == {200})
        yield crew
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_DEADLINE_S)
        finally:
            process.kill()
            process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not.

    One of its threads that still ends may keep its listener open, after the first one has ended.
    """
    return any(map(_runs, Path(f"/proc/{pid}/task").glob("*/stat")))


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
