"""The ways in which a Redis fails. Each begins its fault, holds it, and ends it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from loadtests.children import Child, ChildError, Children
from loadtests.programs import free_ports
from loadtests.redis_chaos.proxy import Proxy
from loadtests.redis_server import RedisServer, find_program
from loadtests.rolling.fleet import exit_code, until

LATENCY_S: Final = 0.05
# Between two resets of every connection.
_STORM_INTERVAL_S: Final = 0.1
# A sentinel must be sure within a second, or there is nothing to see in a short run.
_DOWN_AFTER_MS: Final = 500

Hold = Callable[[float], Awaitable[None]]
"""Begins a fault, holds it for some seconds, and ends it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A Redis that will fail.

    Attributes:
        url: For `index.url`.
        fail: Makes it fail for some seconds.
    """

    url: str
    fail: Hold


@asynccontextmanager
async def stopped(children: Children) -> AsyncIterator[Setting]:
    """It is stopped in good order, and comes back empty."""
    server = _server(children, "stopped")
    yield Setting(server.url, lambda held_s: _ended(server, signal.SIGTERM, held_s))


@asynccontextmanager
async def killed(children: Children) -> AsyncIterator[Setting]:
    """It is killed, and comes back empty."""
    server = _server(children, "killed")
    yield Setting(server.url, lambda held_s: _ended(server, signal.SIGKILL, held_s))


@asynccontextmanager
async def paused(children: Children) -> AsyncIterator[Setting]:
    """It hangs: connections stay, nothing answers."""
    server = _server(children, "paused")

    async def fail(held_s: float) -> None:
        _child(server).signal_group(signal.SIGSTOP)
        await asyncio.sleep(held_s)
        _child(server).signal_group(signal.SIGCONT)

    yield Setting(server.url, fail)


@asynccontextmanager
async def wiped(children: Children) -> AsyncIterator[Setting]:
    """Somebody flushes it."""
    server = _server(children, "wiped")

    async def fail(held_s: float) -> None:
        await _said(server, "FLUSHALL")
        await asyncio.sleep(held_s)

    yield Setting(server.url, fail)


@asynccontextmanager
async def read_only(children: Children) -> AsyncIterator[Setting]:
    """It becomes the replica of another one: it answers reads and refuses writes."""
    server, other = _server(children, "read-only"), _server(children, "other")

    async def fail(held_s: float) -> None:
        await _said(server, "REPLICAOF", "127.0.0.1", str(other.port))
        await asyncio.sleep(held_s)
        await _said(server, "REPLICAOF", "NO", "ONE")

    yield Setting(server.url, fail)


@asynccontextmanager
async def failed_over(children: Children) -> AsyncIterator[Setting]:
    """The primary is killed, and a sentinel promotes its replica."""
    primary = _server(children, "primary")
    options = ("--replicaof", f"127.0.0.1 {primary.port}")
    RedisServer(children, "secondary", options=options).start()
    [port] = free_ports(1)
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {children.folder}",
        f"sentinel monitor chaos 127.0.0.1 {primary.port} 1",
        f"sentinel down-after-milliseconds chaos {_DOWN_AFTER_MS}",
        "sentinel failover-timeout chaos 5000",
    ]
    config = children.folder / "sentinel.conf"
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    children.start("sentinel", [find_program(), str(config), "--sentinel"])
    sentinel = RedisServer(children, "sentinel", port)  # only to ask

    async def has_secondary() -> bool:
        try:
            told = await asyncio.to_thread(sentinel.ask, "SENTINEL", "REPLICAS", "chaos")
        except OSError:
            return False
        return "slave" in told and "flags" in told

    await until(has_secondary, "the sentinel knows the secondary")

    async def fail(held_s: float) -> None:
        _child(primary).kill()
        await asyncio.sleep(held_s)

    yield Setting(f"redis+sentinel://127.0.0.1:{port}/chaos", fail)


@asynccontextmanager
async def slow(children: Children) -> AsyncIterator[Setting]:
    """Every round trip takes 50 ms longer."""
    async with Proxy(_server(children, "slow").port) as proxy:

        async def fail(held_s: float) -> None:
            proxy.delay_s = LATENCY_S
            await asyncio.sleep(held_s)
            proxy.delay_s = 0.0

        yield Setting(proxy.url, fail)


@asynccontextmanager
async def full(children: Children) -> AsyncIterator[Setting]:
    """Its memory is full and nothing may be evicted: it answers reads and refuses writes."""
    server = _server(children, "full", "--maxmemory-policy", "noeviction")

    async def fail(held_s: float) -> None:
        await _said(server, "CONFIG", "SET", "maxmemory", "1mb")
        await asyncio.sleep(held_s)
        await _said(server, "CONFIG", "SET", "maxmemory", "0")

    yield Setting(server.url, fail)


@asynccontextmanager
async def reset(children: Children) -> AsyncIterator[Setting]:
    """Connections are reset ten times a second."""
    async with Proxy(_server(children, "reset").port) as proxy:

        async def fail(held_s: float) -> None:
            for _ in range(round(held_s / _STORM_INTERVAL_S)):
                proxy.reset_all()
                await asyncio.sleep(_STORM_INTERVAL_S)

        yield Setting(proxy.url, fail)


def _server(children: Children, name: str, *options: str) -> RedisServer:
    server = RedisServer(children, f"redis-{name}", options=options)
    server.start()
    return server


def _child(server: RedisServer) -> Child:
    if server.child is None:
        raise ChildError("the server was never started")
    return server.child


async def _said(server: RedisServer, *words: str) -> None:
    answer = await asyncio.to_thread(server.ask, *words)
    if answer != "+OK":
        raise ChildError(f"{' '.join(words)}: {answer}")


async def _ended(server: RedisServer, how: signal.Signals, held_s: float) -> None:
    _child(server).signal_group(how)
    await exit_code(_child(server))
    await asyncio.sleep(held_s)
    server.begin()  # whoever waited here would make the clients' clocks wrong
    await until(lambda: asyncio.to_thread(server.answers), "the server is back")


FAULTS: Final[Mapping[str, Callable[[Children], AbstractAsyncContextManager[Setting]]]] = (
    MappingProxyType(
        {
            "stop": stopped,
            "kill": killed,
            "pause": paused,
            "wipe": wiped,
            "readonly": read_only,
            "failover": failed_over,
            "latency": slow,
            "full": full,
            "resets": reset,
        }
    )
)
"""By the names on the command line."""
