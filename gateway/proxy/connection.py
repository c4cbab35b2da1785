"""One HTTP/1.1 connection to a replica, on httptools' parser."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from gateway.errors import ReplicaTimeout, StreamBroken, UpstreamError

Header = tuple[bytes, bytes]

# Bytes of body that may wait for a slow client before the replica is told to stop sending. As much
# as asyncio's own default write buffer, so both sides of the relay hold about the same.
HIGH_WATER_BYTES = 64 * 1024
# A longer body goes out piece by piece, and after each one other connections have their turn. The
# kernel takes this much in 50 us, and a prompt of 2 MB in 2 ms.
PIECE_BYTES = 64 * 1024
# More header bytes than any engine sends; beyond it the peer is not an engine. As h11's default.
MAX_HEADER_BYTES = 64 * 1024


class Exchange:
    """One request and its response on one connection (an `UpstreamResponse`).

    Args:
        loop: The running one. Kept, because asking for it is a system call on Python 3.11.
        first_byte_s: Seconds until the headers, and again until the body begins. vLLM sends the
            headers of a stream at once and the first token after the prefill, so the body's first
            byte is what takes long.
        idle_s: Seconds that a body may pause after that.
        keep: Called when the response is whole and the connection may serve another request.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        first_byte_s: float,
        idle_s: float,
        keep: Callable[[], None],
    ) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self._loop = loop
        self._patience_s = first_byte_s
        self._idle_s = idle_s
        self._keep = keep
        self._connection: Connection | None = None
        self._chunks: deque[bytes] = deque()
        self._num_buffered_bytes = 0
        self._headers_done = False
        self._complete = False
        self._broken: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._quiet_since = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        """Whether all of the body was read."""
        return self._complete and not self._chunks

    async def headers_received(self) -> None:
        """Wait for status and headers.

        Raises:
            ReplicaTimeout: They did not come in time.
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
            await self._wait()
        if self._patience_s != self._idle_s:  # it has begun: from now on pauses count
            self._patience_s = self._idle_s
            self._stop_timer()
        # From here, not from its arrival: while the client was slow the replica had to wait.
        self._quiet_since = self._loop.time()
        chunk = self._chunks.popleft()
        self._num_buffered_bytes -= len(chunk)
        if self._num_buffered_bytes < HIGH_WATER_BYTES and self._connection is not None:
            self._connection.resume()
        return chunk

    def close(self) -> None:
        """Let go of the connection: an unfinished response ends it."""
        self._stop_timer()
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
        self._quiet_since = self._loop.time()
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

    def on_broken(self, message: str, cause: Exception | None) -> None:
        """The connection ended, or its bytes are no HTTP, before the response was whole."""
        self._connection = None
        self._broken = StreamBroken(message)
        self._broken.__cause__ = cause  # a TLS alert is one, which probes tell apart
        self._wake()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience_s, self._look_at_the_clock)
        await self._waiter

    def _look_at_the_clock(self) -> None:
        """End a wait that is too long.

        One timer for the whole exchange, set again when it fires: a timeout of its own for each
        event of a stream would cost as much as relaying it.
        """
        self._timer = None
        if self._waiter is None:
            return  # nobody waits, the client is slow; the next wait starts the timer again
        left_s = self._quiet_since + self._patience_s - self._loop.time()
        if left_s > 0.0:
            self._timer = self._loop.call_later(left_s, self._look_at_the_clock)
            return
        message = f"The replica sent nothing for {self._patience_s:g} s."
        self._broken = ReplicaTimeout(message)
        self._wake()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Connection(asyncio.Protocol):
    """Writes requests and parses responses; between exchanges it only notices its own end."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.num_received_bytes = 0  # of the current exchange
        self._num_framing_bytes = 0  # since its beginning, its headers' end or a piece of its body
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: list[Header] = []
        self._num_header_bytes = 0
        self._in_head = False  # the response's own headers are not whole yet
        self._bodiless = False  # the request was a HEAD
        self._until_close = False  # the body has no length and ends with the connection
        self._paused = False
        self._unsent = memoryview(b"")  # what is left of a long request
        self._takes_more = True  # the transport's own buffer is not full

    @property
    def usable(self) -> bool:
        """Whether a request may be sent: open, and nothing in progress."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._exchange is None

    def start(self, exchange: Exchange, head: bytes, body: bytes, *, bodiless: bool) -> None:
        """Send a request whose response goes to `exchange`.

        Args:
            exchange: Takes the response.
            head: Request line and headers.
            body: May be empty.
            bodiless: The response ends with its headers, whatever length they tell: to a HEAD.

        Raises:
            StreamBroken: The connection is closed already.
        """
        if self._transport is None or self._transport.is_closing():
            raise StreamBroken("The replica closed the connection.")
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._num_header_bytes = [], 0
        self.num_received_bytes = self._num_framing_bytes = 0
        self._in_head, self._until_close, self._bodiless = True, False, bodiless
        exchange.on_start(self)
        # One write, so one segment where it fits: a small request meets no delayed ACK.
        self._transport.write(head + body[:PIECE_BYTES])
        if len(body) > PIECE_BYTES:
            self._unsent = memoryview(body)[PIECE_BYTES:]
            self._send_more_soon()

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
        self._unsent = memoryview(b"")
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
        self._num_framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # The first also wraps what a callback below raises; the second is a 101.
            self._break("The replica sent what is not HTTP.")
        if self._exchange is not None and self._num_framing_bytes > MAX_HEADER_BYTES:
            # Interim responses, trailers, extensions of chunks: no pause in them would end them.
            self._break("The replica sent framing without end.")

    def eof_received(self) -> bool:
        """asyncio: the replica will send no more; close our side too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone."""
        if self._exchange is not None:
            if self._until_close and exc is None:
                self._finish(reusable=False)
            else:
                self._break("The replica closed the connection before its answer was whole.", exc)
        self._transport = None
        self._unsent = memoryview(b"")

    def pause_writing(self) -> None:
        """asyncio: the replica reads more slowly than we write."""
        self._takes_more = False

    def resume_writing(self) -> None:
        """asyncio: most of what was written is on its way."""
        self._takes_more = True
        self._send_more()

    def _send_more(self) -> None:
        if self._takes_more and self._unsent and self._transport is not None:
            piece, self._unsent = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:]
            self._transport.write(piece)
            self._send_more_soon()

    def _send_more_soon(self) -> None:
        if self._takes_more and self._unsent:
            asyncio.get_running_loop().call_soon(self._send_more)

    # httptools

    def on_message_begin(self) -> None:
        """httptools: a response begins."""
        if self._exchange is None:
            self.abort()  # a second one in the same segment, which nobody asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header, or one trailer, which ends here."""
        if not self._in_head:
            return
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
            self._in_head, self._num_framing_bytes = False, 0
            names = {name for name, _ in self._headers}
            self._until_close = not names & {
                b"content-length",
                b"transfer-encoding",
            } and status not in (204, 304)
            self._exchange.on_headers(status, self._headers)
            if self._bodiless:
                self._finish(reusable=False)  # the parser would wait for a body

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body, without its framing."""
        self._num_framing_bytes = 0
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
            # An answer to half a request: what is left of it would be the next one's beginning.
            exchange.on_complete(reusable=reusable and not self._unsent)

    def _break(self, message: str, cause: Exception | None = None) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.on_broken(message, cause)
