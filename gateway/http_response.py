"""How a response is written to a client's connection.

Differs from uvicorn's own writer in three things. The head goes out together with the first piece
of the body: one system call and one packet less for each request, a tenth of a short one's cost.
Clients that speak HTTP/1.0 cannot read chunks, so their bodies end with the connection. And a body
that does not fit its declared length closes the connection, so that the client sees it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_STATUS_LINE = MappingProxyType(
    {int(s): b"HTTP/1.1 %d %b\r\n" % (s, s.phrase.encode()) for s in HTTPStatus}
)
_BODILESS = frozenset({204, 304})
# A client that is still sending its request when it is refused gets this long to read the answer:
# closed at once, it would get a reset in its place. As nginx's lingering close, but bounded lower.
_LINGER_S = 1.0


class ResponseCycle(RequestResponseCycle):
    """uvicorn's request and response cycle, with a writer of its own."""

    _start: Any = None
    _num_waiting_bytes = 0
    _remaining: int | None = None  # bytes of body still owed; None where no length was declared
    _asked_first = False  # the client sends no body unless it is told to continue
    pieces: list[bytes]  # of the request's body, which `receive` has not handed on

    def feed(self, piece: bytes) -> None:
        """Take a piece of the request's body, from the parser.

        uvicorn's own gathers pieces in a bytearray and copies that into bytes: as much work as all
        else that it does with a long prompt.
        """
        self.pieces.append(piece)
        self._num_waiting_bytes += len(piece)
        if self._num_waiting_bytes > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.message_event.set()

    async def receive(self) -> Any:
        """ASGI: what came of the request's body since the last call, or that the client left."""
        message: Any = await super().receive()
        if message["type"] == "http.request":
            message["body"] = b"".join(self.pieces)  # one piece is not copied
            self.pieces, self._num_waiting_bytes = [], 0
        return message

    async def send(self, message: Any) -> None:
        """ASGI: a part of the response."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.transport.is_closing():  # uvloop raises where asyncio drops
            return
        if message["type"] == "http.response.start":
            self.response_started = True
            self._asked_first, self.waiting_for_100_continue = self.waiting_for_100_continue, False
            self._start = message
            return
        if self.response_complete:
            raise RuntimeError("the response is complete already")
        start, self._start = self._start, None
        head = self._head(start) if start is not None else b""
        more = message.get("more_body", False)
        data = head + self._framed(message.get("body", b""), more=more)
        if data:
            self.transport.write(data)
        if not more:
            self._complete()

    def _head(self, start: Any) -> bytes:
        """Return status line and headers, and settle how the body will be framed."""
        status, headers = start["status"], start.get("headers", ())
        if self.more_body:  # what is still to come of the request must not be the next one
            self.keep_alive = False
        lines = [_STATUS_LINE.get(status, b"HTTP/1.1 %d \r\n" % status)]
        has_length, says_close = self._read(headers)
        lines += [b"%b: %b\r\n" % header for header in headers]
        bodiless = self.scope["method"] == "HEAD" or status in _BODILESS
        if bodiless:
            self._remaining = 0
        elif not has_length and self.scope["http_version"] == "1.1":
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        elif not has_length:
            self.keep_alive = False
        if not self.keep_alive and not says_close:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        # One look at all of it, and not one at each value.
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
            raise RuntimeError("a header's value would end its line")
        return head

    def _read(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[bool, bool]:
        says_close = False
        for name, value in headers:
            if name == b"content-length":
                self._remaining = int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False
                says_close = True
        return self._remaining is not None, says_close

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        if self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        if self._remaining is None:
            return body
        body = body[: self._remaining]  # never more than declared: it would be the next answer
        self._remaining -= len(body)
        return body

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if self._remaining:  # shorter than declared, and HEAD owes nothing
            self.keep_alive = False
        if not self.keep_alive:
            self._close()
        self.on_response()

    def _close(self) -> None:
        if self.more_body and not self._asked_first:
            asyncio.get_running_loop().call_later(_LINGER_S, self.transport.close)
        else:
            self.transport.close()
