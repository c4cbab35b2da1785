"""Replicas that do exactly what a test's script says, over raw sockets."""

import asyncio
import contextlib
import json
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from tests.support.ports import keep

# Long enough for a machine ten times as busy as an idle one; nothing but a failure takes it.
WAIT_S = 30.0
# As uvicorn, which vLLM runs on. With asyncio's 100 the kernel drops handshakes of a burst of
# connections, and what was sent on these arrives seconds later, or not at all.
BACKLOG = 2048


async def until(condition, what="the condition", within_s=WAIT_S):
    """Wait until a condition (plain or async) holds."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                found = condition()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"{what} did not come within {within_s} s")


@dataclass
class Received:
    """One request as a scripted replica received it."""

    head: bytes
    body: bytes

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:]
        pairs = [line.split(b":", 1) for line in lines if line]
        return [(name.lower(), value.strip()) for name, value in pairs]

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


Script = Callable[["Conversation"], Awaitable[None]]


@dataclass
class Conversation:
    """One request, and the socket to answer it on."""

    request: Received
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes, status=b"200 OK", kind=b"application/json", extra=b""):
        head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n"
        await self.send(head % (status, kind, len(body), extra) + body)

    async def start_stream(self, kind=b"text/event-stream; charset=utf-8"):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
        await self.send(head % kind)

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        self.writer.transport.abort()

    async def client_left(self) -> None:
        """Return when the gateway closes this connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1024):
                pass


class Held:
    """A script that answers when it is told to."""

    def __init__(self):
        self.go = asyncio.Event()

    async def __call__(self, conversation):
        await self.go.wait()
        await conversation.answer(b"{}")


@dataclass
class ScriptedReplica:
    """Speaks raw HTTP; probes are answered by itself, everything else by `script`."""

    script: Script
    model: str = "m"
    healthy: bool = True
    received: list[Received] = field(default_factory=list)
    probes: list[Received] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task] = field(default_factory=set)

    async def start(self, port: int = 0):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=BACKLOG)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def stop(self):
        addresses = [(sock.family, sock.getsockname()) for sock in self.server.sockets]
        self.server.close()
        for family, address in addresses:
            weakref.finalize(self, keep(family, address).close)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.server.wait_closed()

    async def _serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = Received(head[:-4], b"")
                length = int(request.header(b"content-length") or 0)
                request.body = await reader.readexactly(length)
                conversation = Conversation(request, reader, writer)
                if request.line.startswith(b"GET"):
                    self.probes.append(request)
                    await self._probe(conversation)
                else:
                    self.received.append(request)
                    await self.script(conversation)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(asyncio.current_task())
            writer.close()

    async def _probe(self, conversation):
        path = conversation.request.line.split()[1]
        if not self.healthy:
            await conversation.answer(b"", status=b"503 Service Unavailable")
        elif path == b"/v1/models":
            models = {"object": "list", "data": [{"id": self.model, "max_model_len": 4096}]}
            await conversation.answer(json.dumps(models).encode())
        elif path == b"/health":
            await conversation.answer(b"")
        else:
            await conversation.answer(b'{"detail":"Not Found"}', status=b"404 Not Found")
