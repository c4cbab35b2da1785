"""A client that sends exactly these bytes, and reads answers by their framing and not by hope."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.support.replicas import WAIT_S, Received


def post(path, body, *headers, version="1.1"):
    """Return a POST as bytes; `body` is bytes, text or what JSON can hold."""
    if isinstance(body, str):
        body = body.encode()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "host: gw", "content-type: application/json"]
    lines += [*headers, f"content-length: {len(data)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


@dataclass
class Answer(Received):
    """One answer as it came: `framing` says how its body ended, `whole` whether it did."""

    framing: str = "length"
    whole: bool = True

    @property
    def status(self) -> int:
        return int(self.line.split()[1])

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    def json(self):
        return json.loads(self.body)


class RawClient:
    """One connection to a listener. Every wait has a deadline."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, url, receive_buffer=None):
        parts = urlsplit(str(url))
        # With the protocol named, asyncio sets TCP_NODELAY.
        sock = socket.socket(proto=socket.IPPROTO_TCP)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
        # What the test does not read must stay in the kernel, or nothing would be pushed back.
        return cls(*await asyncio.open_connection(sock=sock, limit=receive_buffer or 2**16))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        """Return status line and headers, without the empty line."""
        async with asyncio.timeout(WAIT_S):
            return (await self.reader.readuntil(b"\r\n\r\n"))[:-4]

    async def chunk(self) -> bytes:
        """Return the data of the next chunk of a chunked body; b"" for the last one."""
        async with asyncio.timeout(WAIT_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def answer(self, *, to_head=False) -> Answer:
        """Return the next answer, whole or cut; `to_head` says that a HEAD was asked."""
        answer = Answer(await self.head(), b"")
        length = answer.header(b"content-length")
        if to_head or answer.status in (204, 304):
            return answer
        if answer.header(b"transfer-encoding") is not None:
            answer.framing = "chunked"
            await self._chunks(answer)
        elif length is not None:
            await self._exactly(answer, int(length))
        else:
            answer.framing = "close"
            answer.body = await self.rest()
        return answer

    async def rest(self) -> bytes:
        """Return all bytes until the connection ends, by close or reset."""
        data = b""
        try:
            async with asyncio.timeout(WAIT_S):
                while piece := await self.reader.read(65536):
                    data += piece
        except ConnectionError:
            pass
        return data

    def leave(self, how="fin") -> None:
        """Close the connection, with FIN or with RST."""
        if how == "rst":
            linger = struct.pack("ii", 1, 0)
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.writer.transport.abort()
        self.writer.close()

    async def _chunks(self, answer):
        try:
            while piece := await self.chunk():
                answer.body += piece
        except (asyncio.IncompleteReadError, ConnectionError):
            answer.whole = False

    async def _exactly(self, answer, length):
        try:
            async with asyncio.timeout(WAIT_S):
                answer.body = await self.reader.readexactly(length)
        except asyncio.IncompleteReadError as cut:
            answer.body, answer.whole = cut.partial, False
        except ConnectionError:
            answer.whole = False
