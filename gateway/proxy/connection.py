"""One HTTP/1.1 connection to a replica, on httptools' parser."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from gateway.errors import ReplicaTimeout, StreamBroken

Header = tuple[bytes, bytes]

# Bytes of body that may wait for a slow client before the replica is told to stop sending. As much
# as asyncio's own default write buffer, so both sides of the relay hold about the same.
HIGH_WATER_BYTES = 64 * 1024
# More header bytes than any engine sends; beyond it the peer is not an engine. As h11's default.
MAX_HEADER_BYTES = 64 * 1024


class Exchange:
    """One request and its response on one connection (an `UpstreamResponse`).

    Args:
        first_byte_s: Seconds until the body begins. vLLM sends the headers of a stream at once and
            the first token after the prefill, so the body's first byte is what takes long.
        idle_s: Seconds that a body may pause after that.
        keep: Called when the response is whole and the connection may serve another request.
    """

    def __init__(self, first_byte_s: float, idle_s: float, keep: Callable[[], None]) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self._patience_s = first_byte_s
        self._idle_s = idle_s
        self._keep = keep
        self._connection: Connection | None = None
        self._chunks: deque[bytes] = deque()
        self._num_buffered_bytes = 0
        self._headers_done = False
        self._complete = False
        self._broken: StreamBroken | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def headers_received(self) -> None:
        """Wait for status and headers.

        Raises:
            StreamBroken: The connection ended first.
        """
        while not self._headers_done:
            if self._broken is not None:
                raise self._broken
            await self._wait()

    async def read(self) -> bytes:
        """Return the next piece of the body; see `UpstreamResponse.read`."""
        while not self._chunks:
            if self._complete:
                return b""
            if self._broken is not None:
                raise self._broken
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._wait()
            except TimeoutError:
                message = f"The replica sent nothing for {self._patience_s:g} s."
                raise ReplicaTimeout(message) from None
        self._patience_s = self._idle_s
        chunk = self._chunks.popleft()
        self._num_buffered_bytes -= len(chunk)
        if self._num_buffered_bytes < HIGH_WATER_BYTES and self._connection is not None:
            self._connection.resume()
        return chunk

    def close(self) -> None:
        """Let go of the connection: an unfinished response ends it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # What the connection reports.

    def on_start(self, connection: Connection) -> None:
        """The request was written."""
        self._connection = connection

    def on_headers(self, status: int, headers: list[Header]) -> None:
        """Status and headers are whole."""
        self.status, self.headers, self._headers_done = status, headers, True
        self._wake()

    def on_body(self, chunk: bytes) -> None:
        """A piece of the body came."""
        self._chunks.append(chunk)
        self._num_buffered_bytes += len(chunk)
        if self._num_buffered_bytes >= HIGH_WATER_BYTES and self._connection is not None:
            self._connection.pause()
        self._wake()

    def on_complete(self, *, reusable: bool) -> None:
        """The response is whole."""
        self._complete = True
        connection, self._connection = self._connection, None
        if connection is not None:
            if reusable:
                self._keep()
            else:
                connection.abort()
        self._wake()

    def on_broken(self, message: str) -> None:
        """The connection ended, or its bytes are no HTTP, before the response was whole."""
        self._connection = None
        self._broken = StreamBroken(message)
        self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Connection(asyncio.Protocol):
    """Writes requests and parses responses; between exchanges it only notices its own end."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.num_received_bytes = 0  # of the current exchange
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: list[Header] = []
        self._num_header_bytes = 0
        self._until_close = False  # the body has no length and ends with the connection
        self._paused = False

    @property
    def usable(self) -> bool:
        """Whether a request may be sent: open, and nothing in progress."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._exchange is None

    def start(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Send a request whose response goes to `exchange`.

        Raises:
            StreamBroken: The connection is closed already.
        """
        if self._transport is None or self._transport.is_closing():
            raise StreamBroken("The replica closed the connection.")
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._num_header_bytes, self.num_received_bytes = [], 0, 0
        self._until_close = False
        exchange.on_start(self)
        # One write, so one segment where it fits: a small request meets no delayed ACK.
        self._transport.write(head + body)

    def pause(self) -> None:
        """Stop reading: TCP tells the replica to wait."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, without a report to the exchange."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has types of its own

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        exchange = self._exchange
        if exchange is None or self._parser is None:
            self.abort()  # bytes that nobody asked for: the next response could not be trusted
            return
        self.num_received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # also wraps what a callback below raises
            self._break("The replica sent what is not HTTP.")

    def eof_received(self) -> bool:
        """asyncio: the replica will send no more; close our side too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone."""
        if self._exchange is not None:
            if self._until_close and exc is None:
                self._finish(reusable=False)
            else:
                self._break("The replica closed the connection before its answer was whole.")
        self._transport = None

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        self._num_header_bytes += len(name) + len(value)
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise ValueError("too many header bytes")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """httptools: the headers are whole."""
        if self._exchange is None or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status >= 200:
            names = {name for name, _ in self._headers}
            self._until_close = not names & {
                b"content-length",
                b"transfer-encoding",
            } and status not in (204, 304)
            self._exchange.on_headers(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body, without its framing."""
        if self._exchange is not None:
            self._exchange.on_body(body)

    def on_message_complete(self) -> None:
        """httptools: the message is whole."""
        if self._exchange is None or self._parser is None:
            return
        if self._parser.get_status_code() < 200:  # 100 Continue, 103 Early Hints: not the answer
            self._headers = []
            return
        self._finish(reusable=self._parser.should_keep_alive())

    def _finish(self, *, reusable: bool) -> None:
        exchange, self._exchange = self._exchange, None
        self.resume()
        if exchange is not None:
            exchange.on_complete(reusable=reusable)

    def _break(self, message: str) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.on_broken(message)
