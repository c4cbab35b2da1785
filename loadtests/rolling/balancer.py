"""A TCP balancer: moves bytes, and learns from /readyz who gets new connections.

What any layer 4 balancer does: it never sees a request, so a gateway that stops has to end its
connections by itself. Where connecting fails the next one is tried.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

# HAProxy's `inter` is 2 s by default and clouds take 5 to 30 s; scaled down, as gateways' notice.
CHECK_INTERVAL_S: Final = 0.2
_CHECK_TIMEOUT_S: Final = 1.0
_READ_BYTES: Final = 65_536

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""Both ways of one connection."""


@dataclass(slots=True, eq=False)
class Backend:
    """One gateway.

    Attributes:
        port: Of its public listener, on loopback.
        ready: What its /readyz said last.
    """

    port: int
    ready: bool = False


@dataclass(slots=True)
class Balancer:
    """Forwards connections to ready backends in turn while the block runs.

    Attributes:
        backends: May be changed at any time.
        num_refused: Connections that no backend took.
    """

    backends: list[Backend] = field(default_factory=list)
    num_refused: int = 0
    _turn: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._keep(asyncio.create_task(self._check()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """Where clients connect."""
        port = self._server.sockets[0].getsockname()[1] if self._server is not None else 0
        return f"http://127.0.0.1:{port}"

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self) -> None:
        while True:
            await asyncio.gather(*(self._check_one(backend) for backend in self.backends))
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _check_one(self, backend: Backend) -> None:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                backend.ready = await _is_ready(backend.port)
        except (OSError, TimeoutError):
            backend.ready = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._keep(task)
        try:
            upstream = await self._connect()
            if upstream is None:
                self.num_refused += 1
            else:
                await self._join((reader, writer), upstream)
        except asyncio.CancelledError:
            pass  # the end of the block; asyncio would write a traceback for each connection
        finally:
            writer.close()

    async def _join(self, client: Streams, upstream: Streams) -> None:
        try:
            back = asyncio.create_task(_pump(upstream[0], client[1]))
            self._keep(back)
            await _pump(client[0], upstream[1])
            await back
        finally:
            upstream[1].close()

    async def _connect(self) -> Streams | None:
        ready = [backend for backend in self.backends if backend.ready]
        self._turn += 1
        for offset in range(len(ready)):
            backend = ready[(self._turn + offset) % len(ready)]
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", backend.port)
        return None


async def _is_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: balancer\r\nConnection: close\r\n\r\n")
        return (await reader.readline()).split()[1:2] == [b"200"]
    finally:
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Move bytes one way until their end, and pass that on."""
    try:
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()
