"""Servers over raw sockets that do anything a broken or hostile replica could do."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.support.replicas import Received


@dataclass
class Peer:
    """One connection to a `PeerServer`, with its script's means."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> Received:
        """Read one request, whole."""
        received = await self.request_head()
        length = int(received.header(b"content-length") or 0)
        received.body = await self.reader.readexactly(length)
        return received

    async def request_head(self) -> Received:
        """Read a request's head and leave its body on the wire."""
        return Received((await self.reader.readuntil(b"\r\n\r\n"))[:-4], b"")

    async def send(self, *pieces: bytes) -> None:
        """Send pieces, each in a turn of the loop of its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    def finish(self) -> None:
        """Send FIN and read on."""
        self.writer.write_eof()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Send RST: with nothing left to read, only a lingering of 0 s makes the kernel do so."""
        linger = struct.pack("ii", 1, 0)
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def left(self) -> None:
        """Return when the other side closes."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


@dataclass
class PeerServer:
    """Runs `script(peer)` for every connection; `ended` counts those that are over."""

    script: Callable[[Peer], Awaitable[None]]
    connections: int = 0
    ended: int = 0
    port: int = 0
    tasks: set[asyncio.Task] = field(default_factory=set)

    async def _serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            await self.script(Peer(self.connections, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.ended += 1
            self.tasks.discard(asyncio.current_task())
            writer.close()


@contextlib.asynccontextmanager
async def peer_server(script):
    """Serve a script on a free port of this machine."""
    peers = PeerServer(script)
    server = await asyncio.start_server(peers._serve, "127.0.0.1", 0)
    peers.port = server.sockets[0].getsockname()[1]
    try:
        yield peers
    finally:
        server.close()
        for task in list(peers.tasks):
            task.cancel()
        await asyncio.gather(*peers.tasks, return_exceptions=True)
        await server.wait_closed()
