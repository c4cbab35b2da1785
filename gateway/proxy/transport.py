"""The seam to replicas: one request out, one response back, as bytes.

`Transport` is what the pipeline knows. The implementation here is a small HTTP/1.1 client on
httptools, chosen by measurement: a general client costs 1.4 to 2 times the CPU a request, and the
relay is what a gateway spends its time on (docs/adr/0007).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from gateway.errors import ConnectTimeout, ReplicaUnreachable, StreamBroken
from gateway.proxy.connection import Connection, Exchange, Header
from routing.value import value

# vLLM (uvicorn) closes idle connections after 5 s; ours must go first, or a POST meets a reset.
IDLE_EXPIRY_S = 4.0
# Idle connections kept for one replica: as many as one replica runs sequences at once (256 in
# vLLM's default), so that a burst's connections are reused by the next one.
MAX_IDLE = 256


@value
class Origin:
    """Where a replica listens, and how to speak TLS there; None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, url: str, tls: ssl.SSLContext) -> Origin:
        """Return the origin of an http or https URL; only the latter uses `tls`."""
        parts = urlsplit(url)
        if parts.scheme == "https":
            return cls(parts.hostname or "", parts.port or 443, tls)
        return cls(parts.hostname or "", parts.port or 80)

    @property
    def authority(self) -> bytes:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode()


@value
class Deadlines:
    """Seconds that one exchange may wait for each of its steps.

    Attributes:
        connect_s: To open a connection.
        first_byte_s: For the headers, and again for the first byte of the body.
        idle_s: Between two pieces of the body.
    """

    connect_s: float = 2.0
    first_byte_s: float = 600.0
    idle_s: float = 120.0


@value
class UpstreamRequest:
    """What goes to a replica; `headers` already leave out hop-by-hop and framing headers."""

    method: bytes
    target: bytes
    headers: list[Header]
    body: bytes

    def head(self, origin: Origin) -> bytes:
        """Return the request line and headers as bytes on the wire."""
        lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (self.method, self.target, origin.authority)]
        lines += [b"%b: %b\r\n" % header for header in self.headers]
        if self.body or self.method != b"GET":
            lines.append(b"content-length: %d\r\n" % len(self.body))
        lines.append(b"\r\n")
        return b"".join(lines)


class UpstreamResponse(Protocol):
    """A response whose status and headers are here and whose body is still coming."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def headers(self) -> list[Header]:
        """Headers as received, in order, names in lower case."""
        ...

    @property
    def ended(self) -> bool:
        """Whether all of the body was read: the next `read` would return nothing."""
        ...

    async def read(self) -> bytes:
        """Return the next piece of the body as it came from the wire; b"" at its end.

        Raises:
            ReplicaTimeout: Nothing came for `Deadlines.first_byte_s`, or later for `idle_s`.
            StreamBroken: The connection ended before the body did.
        """
        ...

    def close(self) -> None:
        """Let go: keep the connection where the response is whole, else close it. Idempotent."""
        ...


class Transport(Protocol):
    """Sends requests to replicas."""

    async def request(
        self, origin: Origin, request: UpstreamRequest, deadlines: Deadlines
    ) -> UpstreamResponse:
        """Send a request and wait for the response's status and headers.

        Raises:
            ReplicaUnreachable: No connection: nothing was sent.
            ReplicaTimeout: No first byte within `deadlines.first_byte_s`.
            StreamBroken: The connection ended, or spoke no HTTP, before the headers were whole.
        """
        ...

    def close(self) -> None:
        """Close all idle connections."""
        ...


class HttpToolsTransport:
    """HTTP/1.1 over kept-alive connections, one request a connection at a time.

    Made inside the running event loop.

    Args:
        now: Monotonic seconds.

    Attributes:
        num_lapsed: Kept connections that could not be used again, because the replica closed them
            or they had become too old. What listens there may be another process since.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.num_lapsed = 0
        self._loop = asyncio.get_running_loop()
        self._now = now
        self._idle_by_origin: dict[Origin, list[Connection]] = {}

    async def request(
        self, origin: Origin, request: UpstreamRequest, deadlines: Deadlines
    ) -> UpstreamResponse:
        """Send a request; see `Transport.request`.

        A kept connection that the replica closed before a single byte of response gets one more
        try on a fresh one: the close crossed our request on the wire.
        """
        head = request.head(origin)
        connection = self._take_idle(origin)
        if connection is not None:
            try:
                return await self._exchange(origin, connection, head, request, deadlines)
            except StreamBroken:
                if connection.num_received_bytes:
                    raise
                self.num_lapsed += 1
        connection = await self._connect(origin, deadlines.connect_s)
        return await self._exchange(origin, connection, head, request, deadlines)

    def forget(self, origin: Origin) -> None:
        """Close the idle connections to a replica that is gone."""
        for connection in self._idle_by_origin.pop(origin, ()):
            connection.abort()

    def close(self) -> None:
        """Close all idle connections."""
        for idle in self._idle_by_origin.values():
            for connection in idle:
                connection.abort()
        self._idle_by_origin.clear()

    async def _exchange(
        self,
        origin: Origin,
        connection: Connection,
        head: bytes,
        request: UpstreamRequest,
        deadlines: Deadlines,
    ) -> UpstreamResponse:
        exchange = Exchange(
            self._loop,
            deadlines.first_byte_s,
            deadlines.idle_s,
            lambda: self._keep(origin, connection),
        )
        try:
            connection.start(exchange, head, request.body, bodiless=request.method == b"HEAD")
            await exchange.headers_received()
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _connect(self, origin: Origin, connect_s: float) -> Connection:
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await self._loop.create_connection(
                    Connection, origin.host, origin.port, ssl=origin.tls
                )
        except TimeoutError:
            raise ConnectTimeout("The replica could not be reached in time.") from None
        except OSError as error:  # refused, reset, unresolved, not trusted
            raise ReplicaUnreachable("The replica could not be reached.") from error
        return connection

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle_by_origin.get(origin, [])
        while idle:
            connection = idle.pop()  # the youngest: the old ones may expire in peace
            if connection.usable and self._now() - connection.idle_since < IDLE_EXPIRY_S:
                return connection
            self.num_lapsed += 1
            connection.abort()
        return None

    def _keep(self, origin: Origin, connection: Connection) -> None:
        idle = self._idle_by_origin.setdefault(origin, [])
        now = self._now()
        # The list is in order of age, so those that expired are at its front.
        while idle and (now - idle[0].idle_since >= IDLE_EXPIRY_S or len(idle) >= MAX_IDLE):
            idle.pop(0).abort()
        connection.idle_since = now
        idle.append(connection)
