"""What the index in Redis costs: look-ups, writes, memory; and the client against redis-py's.

    python -m tests.measure.redis_index [--rounds 1000] [--seconds 10] [--entries 1000000]

Run by `make measure-redis`. Starts a redis-server of its own.
"""

import argparse
import asyncio
import gc
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import redis.asyncio
import uvloop

from gateway.index.reading import _READ
from gateway.index.redis import RedisIndex
from gateway.observability.metrics import Metrics
from gateway.redis.link import RedisLink
from gateway.redis.node import LinkState
from gateway.serving import GC_NEW_OBJECTS
from loadtests.measurement import Measurement, MeasurementError, Report
from routing.block_map import BlockMap
from routing.types import ReplicaId, Tier
from tests.support.background import some_background
from tests.support.lives import Board, SomeLives
from tests.support.redis_servers import LogLines, RedisServer, dialing
from tests.support.replicas import until

SEED = 5
NUM_REPLICAS = 8
PROMPT_BLOCKS = 2048
NUM_PROMPTS = 16
WRITES_PER_S = 10_000
STEP_BLOCKS = 128  # what one change of the translator has at most
MISSED = 100

MAX_LOOKUP_MS = 1.0
MAX_LOOKUP_CPU_MS = 0.3
MAX_WRITE_CPU = 0.4
MAX_BYTES = 100.0


@dataclass
class Row:
    """One line of the table; `most` is the goal, None where there is none."""

    name: str
    figure: float
    unit: str
    most: float | None = None

    @property
    def is_met(self) -> bool:
        return self.most is None or self.figure <= self.most

    def show(self) -> None:
        goal = "" if self.most is None else f"at most {self.most:g}"
        verdict = "" if self.most is None else "met" if self.is_met else "MISSED"
        print(f"{self.name:58} {self.figure:9.3f} {self.unit:6} {goal:14} {verdict}", flush=True)


class SteadyLives(SomeLives):
    """Lives that do not change, looked up as fast as those of the exchange are."""

    version = 1
    has_others = True

    def __init__(self, board: Board, owned_ids: tuple | list) -> None:
        super().__init__(board, owned_ids)
        self.replica_by_life = {life: name for name, life in board.life_by_replica.items()}

    def replica_of(self, life: int) -> ReplicaId | None:
        return self.replica_by_life.get(life)


class Bench:
    """A server, the gateway that owns all replicas, and one that owns none."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.rng = Random(SEED)
        self.names = [ReplicaId(f"r{number}") for number in range(NUM_REPLICAS)]
        self.board = Board(*self.names)
        self.links: list[RedisLink] = []
        self.owner = self._index("bench", self.names)
        self.reader = self._index("bench", ())

    def _index(self, namespace: str, owned: tuple | list) -> RedisIndex:
        # Deadlines so far out that what is measured is never cut short.
        patient = dialing(self.server.url, fast_limit_s=10.0, reply_timeout_s=30.0)
        link = RedisLink(patient, namespace, Metrics().redis, LogLines())
        link.start(some_background())
        self.links.append(link)
        return RedisIndex(
            link=link,
            lives=SteadyLives(self.board, owned),
            blocks=BlockMap(10_000_000, 1000),
            timeout_s=lambda: 10.0,
            entry_ttl_s=3600.0,
            metrics=Metrics().shared_index,
            now=time.monotonic,
        )

    async def up(self) -> None:
        await until(lambda: all(link.state is LinkState.UP for link in self.links))
        # What is stored before the writer has met this server is said again in other lives.
        await self.written()

    def chain(self, count: int) -> list[int]:
        return [self.rng.getrandbits(64) for _ in range(count)]

    def store(self, replica: ReplicaId, keys: list[int]) -> None:
        for start in range(0, len(keys), STEP_BLOCKS):
            some = keys[start : start + STEP_BLOCKS]
            parents = [keys[start - 1] if start else None, *some[:-1]]
            self.owner.store(replica, some, Tier.L0, parents)

    async def written(self) -> None:
        await until(lambda: self.owner.is_written, within_s=60.0)

    def used_bytes(self) -> int:
        return self.server.command("INFO", "memory")["used_memory"]


async def timed(rounds: int, one: Callable) -> tuple[float, float]:
    """Return the median wall time and the mean CPU time of this process, in ms: best of three."""
    found = [await _timed_once(rounds // 3 + 1, one) for _ in range(3)]
    return min(wall for wall, _ in found), min(cpu for _, cpu in found)


async def _timed_once(rounds: int, one: Callable) -> tuple[float, float]:
    walls, begun = [], time.process_time()
    for number in range(rounds):
        started = time.perf_counter()
        await one(number)
        walls.append(time.perf_counter() - started)
    cpu_s = (time.process_time() - begun) / rounds
    return statistics.median(walls) * 1e3, cpu_s * 1e3


async def lookups(bench: Bench, rounds: int):
    """Prompts that half of the replicas hold to the end and the others to different depths."""
    prompts = [bench.chain(PROMPT_BLOCKS) for _ in range(NUM_PROMPTS)]
    for keys in prompts:
        for number, name in enumerate(bench.names):
            share = 1.0 if number % 2 else (number + 1) / NUM_REPLICAS
            bench.store(name, keys[: int(share * PROMPT_BLOCKS)])
        await bench.written()

    async def ours(number: int) -> None:
        bench.reader._reader._kept.clear()
        found = await bench.reader.lookup({16: prompts[number % NUM_PROMPTS]})
        assert len(found) == NUM_REPLICAS

    async def hot(number: int) -> None:
        await bench.reader.lookup({16: prompts[number % 2]})

    await timed(50, ours)
    wall_ms, cpu_ms = await timed(rounds, ours)
    yield Row("look-up of 2,048 blocks over 8 replicas, p50", wall_ms, "ms", MAX_LOOKUP_MS)
    yield Row("  its CPU in the gateway, mean", cpu_ms, "ms", MAX_LOOKUP_CPU_MS)
    wall_ms, cpu_ms = await timed(rounds, hot)
    yield Row("  the same prompts again and again, p50", wall_ms, "ms")
    yield Row("  its CPU in the gateway, mean", cpu_ms, "ms")
    async for row in by_redis_py(bench, prompts, rounds):
        yield row


async def by_redis_py(bench: Bench, prompts: list[list[int]], rounds: int):
    """The script's call alone, by either client."""
    from gateway.index.segments import cut  # noqa: PLC0415 - beside what it is for

    link, reader = bench.links[1], bench.reader._reader
    calls = [reader._calls(cut(keys), 0, None)[0][0] for keys in prompts]
    client = redis.asyncio.Redis(port=bench.server.port)

    async def by_link(number: int) -> None:
        call = calls[number % NUM_PROMPTS]
        await link.call(_READ, call.keys, call.args, 10.0)

    async def by_client(number: int) -> None:
        call = calls[number % NUM_PROMPTS]
        await client.evalsha(_READ.digest.decode(), len(call.keys), *call.keys, *call.args)

    for name, one in (("our link", by_link), ("redis-py", by_client)):
        await timed(50, one)
        wall_ms, cpu_ms = await timed(rounds, one)
        yield Row(f"the call alone by {name}, p50", wall_ms, "ms")
        yield Row("  its CPU in the gateway, mean", cpu_ms, "ms")
    await client.aclose()


async def missed_deadlines(bench: Bench):
    """How many connections 100 calls cost that are given up after 3 ms, ten at a time."""

    def opened() -> int:
        return bench.server.command("INFO", "stats")["total_connections_received"]

    client = redis.asyncio.Redis(port=bench.server.port)
    await client.ping()
    digest = _READ.digest.decode()
    lives = bench.reader._reader.packed_lives()
    args = ("bench:b:", "bench:p:", lives, b"\1\0", b"\0" * 8)

    async def by_link() -> None:
        await bench.links[1].call(_READ, [b"bench:b:{0}"], [8, *args[1:]], 0.003)

    async def by_client() -> None:
        async with asyncio.timeout(0.003):
            await client.evalsha(digest, 1, b"bench:b:{0}", 8, *args[1:])

    for name, one in (("our link", by_link), ("redis-py", by_client)):
        before = opened()
        for _ in range(MISSED // 10):
            bench.server.pause()
            await asyncio.gather(*(one() for _ in range(10)), return_exceptions=True)
            bench.server.resume()
            await asyncio.sleep(0.02)
        yield Row(f"connections that 100 missed deadlines cost, {name}", opened() - before - 1, "")
    await client.aclose()


async def writes(bench: Bench, seconds: float):
    """New blocks of one owner at a steady pace, each held by one replica."""
    begun, cpu = time.perf_counter(), time.process_time()
    num_stored, late_s = 0, 0.0
    while (elapsed := time.perf_counter() - begun) < seconds:
        while num_stored < elapsed * WRITES_PER_S:
            bench.store(bench.rng.choice(bench.names), bench.chain(STEP_BLOCKS))
            num_stored += STEP_BLOCKS
        await asyncio.sleep(0.01)
    stopped = time.perf_counter()
    await bench.written()
    late_s = time.perf_counter() - stopped
    share = (time.process_time() - cpu) / (time.perf_counter() - begun)
    name = f"share of a core for {num_stored / seconds:,.0f} block writes/s"
    yield Row(name, share, "", MAX_WRITE_CPU)
    yield Row("  written after the last one came", late_s, "s", 1.0)


async def memory(bench: Bench, num_entries: int):
    """Chains of 2,048 blocks, each block held by one replica: nothing is shared."""
    bench.server.wipe()
    bench.server.command("SLOWLOG", "RESET")
    before, stored = bench.used_bytes(), 0
    while stored < num_entries:
        bench.store(bench.rng.choice(bench.names), bench.chain(PROMPT_BLOCKS))
        stored += PROMPT_BLOCKS
        if stored % (20 * PROMPT_BLOCKS) == 0:
            await bench.written()
    await bench.written()
    used = (bench.used_bytes() - before) / stored
    yield Row(f"bytes a (block, replica) at {stored:,} of them", used, "bytes", MAX_BYTES)
    slow_us = [line[2] for line in bench.server.command("SLOWLOG", "GET", 1000)]
    yield Row("longest command", max(slow_us, default=0) / 1e3, "ms", 10.0)


async def measure(server: RedisServer, given: argparse.Namespace) -> list[Row]:
    bench = Bench(server)
    bench.owner.start(some_background())
    await bench.up()
    rows = []
    try:
        for part in (
            lookups(bench, given.rounds),
            missed_deadlines(bench),
            writes(bench, given.seconds),
            memory(bench, given.entries),
        ):
            async for row in part:
                row.show()
                rows.append(row)
    finally:
        bench.owner.close()
        for link in bench.links:
            link.close()
        await asyncio.sleep(0)
    return rows


def main() -> int:
    program = Measurement("tests.measure.redis_index", __doc__.partition("\n")[0])
    add = program.options.add_argument
    add("--rounds", type=int, default=1000, help="look-ups of each kind")
    add("--seconds", type=float, default=10.0, help="of steady writes")
    add("--entries", type=int, default=1_000_000, help="for the memory")
    return program.run(None, report)


def report(given: argparse.Namespace, _folder: Path) -> Report:
    binary = shutil.which("redis-server")
    if binary is None:
        raise MeasurementError("needs redis-server on the PATH")
    # As `warmroute serve` does once it has started.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_NEW_OBJECTS)
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(binary, Path(folder), "--slowlog-log-slower-than", "2000")
        server.start()
        try:
            rows = uvloop.run(measure(server, given))
        finally:
            server.stop()
    missed = [f"{row.name.strip()}: {row.figure:.3f} {row.unit}" for row in rows if not row.is_met]
    return Report({"rows": [asdict(row) for row in rows]}, missed)


if __name__ == "__main__":
    sys.exit(main())
