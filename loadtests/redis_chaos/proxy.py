"""A TCP proxy that makes a line slow, or resets what runs over it."""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

_READ_BYTES: Final = 65_536
# SO_LINGER, on and 0 s: closing sends a reset and not a goodbye.
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Proxy:
    """Forwards connections to one port on loopback while the block runs.

    Attributes:
        target_port: Where to.
        delay_s: Added to each way of a round trip, half of it each.
        num_resets: Connections reset so far.
    """

    target_port: int
    delay_s: float = 0.0
    num_resets: int = 0
    _server: asyncio.Server | None = None
    _lines: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """For `index.url`."""
        port = self._server.sockets[0].getsockname()[1] if self._server is not None else 0
        return f"redis://127.0.0.1:{port}"

    def reset_all(self) -> None:
        """Reset every connection that is open."""
        for writer in list(self._lines):
            bound = writer.get_extra_info("socket")
            if bound is not None:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
            self.num_resets += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._tasks.add(task)
        self._lines.add(writer)
        try:
            with suppress(OSError):
                await self._join(reader, writer)
        except asyncio.CancelledError:
            pass  # the end of the block
        finally:
            self._tasks.discard(task)
            self._lines.discard(writer)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        ways = (self._pump(reader, target_writer), self._pump(target_reader, writer))
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            target_writer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Move bytes one way; each piece leaves later by the delay, and overtakes none."""
        loop = asyncio.get_running_loop()
        while data := await reader.read(_READ_BYTES):
            if self.delay_s:
                loop.call_later(self.delay_s / 2, _write, writer, data)
            else:
                writer.write(data)


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)
