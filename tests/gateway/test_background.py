"""What goes on beside requests goes on after a bug, and tells of it."""

import asyncio
import json
import logging
import sys
from dataclasses import dataclass, field

import pytest

from gateway.background import Background, Work
from gateway.config.models import GatewayConfig
from gateway.observability.logging import JsonFormatter
from gateway.observability.metrics import Metrics
from gateway.replicas.discovery.file import FileDiscovery
from gateway.shared.loads import SharedLoads
from tests.support.engines import Engine
from tests.support.redis_servers import LogLines
from tests.support.replicas import until
from tests.support.several import several

__all__ = ["several"]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr("gateway.background.FIRST_PAUSE_S", 0.001)


@dataclass
class Watched:
    """A `Background` and what came of it."""

    log: LogLines = field(default_factory=LogLines)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self):
        self.background = Background(self.log, self.metrics.background)

    def crashes(self, work):
        page = self.metrics.page().decode()
        line_start = f'warmroute_task_crashes_total{{task="{work.value}"}} '
        return next(float(x.split()[1]) for x in page.splitlines() if x.startswith(line_start))


async def ends(task):
    await asyncio.wait([task], timeout=5)
    assert task.done()


class Runs:
    """Meets these one after the other, one a run; then runs until cancelled."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.num_begun = 0

    async def __call__(self):
        self.num_begun += 1
        if self.errors:
            raise self.errors.pop(0)
        await asyncio.get_running_loop().create_future()


async def test_a_crash_is_told_without_its_text_and_the_task_begins_again():
    watched, key = Watched(), "sk-1234"
    run = Runs(ValueError(f"no header can hold {key}"))
    task = watched.background.start(Work.KEYS, run, "a")
    await until(lambda: run.num_begun == 2, "the second run")
    [line] = watched.log.lines
    told = {name: line[name] for name in ("event", "task", "name", "error", "errno")}
    assert told == {
        "event": "task_crashed",
        "task": "keys",
        "name": "a",
        "error": "ValueError",
        "errno": None,
    }
    assert "self.errors.pop" in line["traceback"]
    assert key not in json.dumps(line)
    assert watched.crashes(Work.KEYS) == 1
    assert watched.crashes(Work.PROBE) == 0, "there before the first one, for a rate"
    task.cancel()
    await ends(task)


async def test_crashes_in_a_row_are_told_once_and_all_counted():
    watched = Watched()
    run = Runs(*(RuntimeError() for _ in range(6)))
    task = watched.background.start(Work.PROBE, run)
    await until(lambda: run.num_begun == 7, "the last run")
    assert (len(watched.log.lines), watched.crashes(Work.PROBE)) == (1, 6)
    task.cancel()
    await ends(task)


async def test_a_crash_after_a_run_that_was_well_is_told_again(monkeypatch):
    monkeypatch.setattr("gateway.background.LONGEST_PAUSE_S", 0.01)
    watched, crash = Watched(), asyncio.Event()

    async def run():
        await crash.wait()
        crash.clear()
        raise OSError(24, "Too many open files")

    task = watched.background.start(Work.DISCOVERY, run)
    loop = asyncio.get_running_loop()
    for number in (1, 2):
        well_at = loop.time() + 0.1  # longer than the longest pause
        await until(lambda at=well_at: loop.time() > at, "a long run")
        crash.set()
        await until(lambda n=number: len(watched.log.lines) == n, "the line")
    assert watched.log.lines[1]["errno"] == 24
    task.cancel()
    await ends(task)


async def test_of_a_group_the_first_of_its_exceptions_is_told():
    watched = Watched()
    run = Runs(ExceptionGroup("tasks", [ExceptionGroup("inner", [KeyError("x")]), OSError()]))
    task = watched.background.start(Work.SHARED_CACHE, run)
    await until(lambda: run.num_begun == 2, "the second run")
    assert watched.log.lines[0]["error"] == "KeyError"
    task.cancel()
    await ends(task)


async def test_a_future_that_somebody_else_cancelled_does_not_end_a_task():
    watched = Watched()
    run = Runs(asyncio.CancelledError())
    task = watched.background.start(Work.REDIS, run)
    await until(lambda: run.num_begun == 2, "the second run")
    assert watched.log.lines[0]["error"] == "CancelledError"
    task.cancel()
    await ends(task)
    assert task.cancelled()


async def test_a_task_that_is_cancelled_ends_whatever_it_meets_then():
    watched = Watched()

    async def run():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise RuntimeError("on the way out")

    task = watched.background.start(Work.RELOAD, run)
    await asyncio.sleep(0)
    task.cancel()
    await ends(task)
    assert [line["error"] for line in watched.log.lines] == ["RuntimeError"]


async def test_a_task_that_returns_has_ended():
    watched, run = Watched(), Runs()

    async def once():
        run.num_begun += 1

    task = watched.background.start(Work.KV_EVENTS, once)
    await ends(task)
    assert (run.num_begun, watched.log.lines) == (1, [])


async def test_a_discovery_that_meets_a_bug_is_told_and_finds_replicas_afterwards(
    gateways, engines, tmp_path, monkeypatch
):
    [engine] = await engines(Engine())
    file = tmp_path / "replicas.json"
    file.write_text(json.dumps([engine.url]))
    discovery = {"kind": "file", "path": str(file), "interval_s": 0.01}
    config = {"models": [{"name": "m", "discovery": [discovery]}]}
    parse = FileDiscovery._parse
    bugs = [RuntimeError("a bug")]

    async def fail_once(self, content):
        if bugs:
            raise bugs.pop()
        return await parse(self, content)

    monkeypatch.setattr(FileDiscovery, "_parse", fail_once)
    gateway = await gateways(GatewayConfig.model_validate(config), wait_ready=False)

    async def is_found():
        return await gateway.states() == ["ready"]

    await until(is_found, "the replica")
    [line] = [line for line in gateway.log if line["event"] == "task_crashed"]
    assert (line["task"], line["name"]) == ("discovery", "m file")
    assert await gateway.metric('warmroute_task_crashes_total{task="discovery"}') == 1


async def test_what_goes_on_at_once_after_a_bug_tells_and_counts_it_in_the_same_way(monkeypatch):
    monkeypatch.setattr("gateway.background.LONGEST_PAUSE_S", 0.01)
    watched, loop = Watched(), asyncio.get_running_loop()
    crashes = watched.background.crashes(Work.INDEX_WRITER, "a")
    assert not await crashes.survive(Runs(OSError(24, "a text"))())
    [line] = watched.log.lines
    assert (line["event"], line["task"], line["name"]) == ("task_crashed", "index_writer", "a")
    assert (line["error"], line["errno"]) == ("OSError", 24)
    assert "a text" not in json.dumps(line)
    well_at = loop.time() + 0.1  # longer than the longest pause
    await until(lambda: loop.time() > well_at, "a long time without a crash")
    assert not await crashes.survive(Runs(KeyError())())
    assert (len(watched.log.lines), watched.crashes(Work.INDEX_WRITER)) == (2, 2)


async def test_what_crashes_at_each_step_is_told_once():
    watched = Watched()
    crashes, run = watched.background.crashes(Work.EXCHANGE), Runs(*(KeyError() for _ in range(5)))
    assert [await crashes.survive(run()) for _ in range(5)] == [False] * 5
    assert (len(watched.log.lines), watched.crashes(Work.EXCHANGE)) == (1, 5)


async def test_a_step_that_goes_well_is_no_crash_and_one_that_is_cancelled_is_not_survived():
    watched = Watched()
    crashes = watched.background.crashes(Work.EXCHANGE)
    assert await crashes.survive(asyncio.sleep(0))
    task = asyncio.create_task(crashes.survive(Runs()()))
    await asyncio.sleep(0)
    task.cancel()
    await ends(task)
    assert (task.cancelled(), watched.log.lines) == (True, [])


async def test_the_exchange_goes_on_after_a_bug_and_tells_it(
    several, redis_server, engines, monkeypatch
):
    [gateway] = await several(redis_server, await engines(Engine()), 1)
    key = "sk-1234"

    def fail(*_):
        raise KeyError(key)

    with monkeypatch.context() as patched:
        patched.setattr(SharedLoads, "tell", fail)

        async def has_crashed_again():
            return await gateway.metric('warmroute_task_crashes_total{task="exchange"}') >= 3

        await until(has_crashed_again, "crashes")
    [line] = [line for line in gateway.log if line["event"] == "task_crashed"]
    assert (line["task"], line["error"]) == ("exchange", "KeyError")
    assert key not in json.dumps(line)

    async def is_heard():
        return (await gateway.status())["gateways"]["heard_s_ago"] < 0.2

    await until(is_heard, "the next tick")


def test_no_log_line_has_the_text_of_an_exception():
    record = logging.LogRecord("a", logging.ERROR, "", 0, "internal_error", (), None)
    text = "a prompt"
    try:
        _fail(text)
    except ValueError:
        record.exc_info = sys.exc_info()
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["error"]) == ("internal_error", "ValueError")
    assert "raise ValueError(text)" in line["traceback"]
    assert text not in json.dumps(line)


def _fail(text):
    raise ValueError(text)
