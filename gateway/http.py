"""Client connections: uvicorn's HTTP protocol with the limits that a public listener needs.

What an application never sees has to be refused here: connections beyond the limit, clients that
trickle their headers, headers without end.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.api.asgi import CUT_OFF, ON_DISCONNECT
from gateway.api.probes import OPEN_PATHS
from gateway.errors import (
    GatewayError,
    HeadersTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    Overloaded,
    ReceiveTimeout,
)
from gateway.http_response import ResponseCycle

# Connections beyond the limit that are still read, so that a probe gets its answer when clients
# have taken all others: a full gateway is alive. Anything but a probe gets 503 there.
PROBE_CONNECTIONS = 32
# Files that a gateway needs besides connections: listeners, KV event sockets, libraries.
_RESERVED_FILES = 128


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one listener allows its clients.

    Attributes:
        max_connections: Open at once.
        max_header_bytes: Of one request.
        arrival_s: For one request to arrive, headers and body, from its first byte; and for that
            byte, on a new connection.
    """

    max_connections: int
    max_header_bytes: int
    arrival_s: float


def allowed_connections(wanted: int) -> int:
    """Return how many client connections the limit on open files has room for.

    Takes all the files that this process may have. Each client may need a second one, to a replica.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return max(1, min(wanted, (most - _RESERVED_FILES - PROBE_CONNECTIONS) // 2))


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with `ConnectionLimits`.

    Args:
        limits: Shared by all connections of a listener.
        is_draining: Whether the listener is about to close: then every answer is a connection's
            last one.
        config, server_state, app_state, _loop: uvicorn's own.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        is_draining: Callable[[], bool],
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.cycle: ResponseCycle
        self._limits = limits
        self._is_draining = is_draining
        self._num_header_bytes = 0
        self._arriving = False  # a request has begun and is not whole
        self._in_head = False
        self._asked = False  # a request's headers were whole once: there is a cycle
        self._surplus = False  # beyond the limit: only probes are answered
        self._arrival_timer: asyncio.TimerHandle | None = None
        self._on_disconnect: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is arriving or running, or its answer is not yet handed over."""
        running = self._asked and not self.cycle.response_complete
        return self._arriving or running or self.transport.get_write_buffer_size() > 0

    @property
    def fresh(self) -> bool:
        """Whether no request has come in yet."""
        return not (self._asked or self._arriving)

    def keep_alive_no_longer(self) -> None:
        """Let the answer that is being made be the last one here."""
        if self._asked:
            self.cycle.keep_alive = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio: a client connected."""
        super().connection_made(transport)
        surplus = len(self.connections) - self._limits.max_connections
        self._surplus = surplus > 0
        if surplus > PROBE_CONNECTIONS:
            self._refuse(_overloaded())
            return
        # Balancers open connections ahead of need; one that never speaks is closed without a word.
        self._start_arrival_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone."""
        self._stop_arrival_timer()
        super().connection_lost(exc)
        if self._on_disconnect is not None:
            self._on_disconnect()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        if self.transport.is_closing():  # refused: whatever else it sends is of no interest
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as asked:
            self._pass_over_upgrade(data[asked.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if not self._arriving:
            self._stop_arrival_timer()
        elif self._arrival_timer is None:  # a request that came in one piece needs none
            self._start_arrival_timer()

    def send_400_response(self, msg: str) -> None:
        """uvicorn: the client's bytes are no HTTP."""
        if not self.transport.is_closing():
            self._refuse(InvalidRequest(msg))

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        super().on_message_begin()
        self.scope["state"][ON_DISCONNECT] = self._set_on_disconnect
        self._num_header_bytes = 0
        self._arriving = self._in_head = True
        self._stop_arrival_timer()

    def on_url(self, url: bytes) -> None:
        """httptools: a piece of the request target."""
        self._count_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header, or one trailer, which ends here."""
        self._count_header_bytes(len(name) + len(value))
        if not self._in_head:
            return
        # As uvicorn's own, of which every call costs: a request has a dozen headers.
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """httptools: the headers are whole."""
        self._in_head = False
        if self.parser.get_method() == b"CONNECT":
            self._refuse(MethodNotAllowed("This is no proxy.", allowed="GET, POST"))
        if self.transport.is_closing() or self.parser.should_upgrade():
            return
        super().on_headers_complete()
        # uvicorn has no seam for how bodies are handed on and responses are written.
        self.cycle.__class__ = ResponseCycle
        self.cycle.pieces = []
        self._asked = True
        if self._is_draining():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the request's body."""
        if not (self.transport.is_closing() or self.cycle.response_complete):
            self.cycle.feed(body)

    def on_message_complete(self) -> None:
        """httptools: the request is whole."""
        self._arriving = False
        if not (self.transport.is_closing() or self.parser.should_upgrade()):
            super().on_message_complete()

    def _pass_over_upgrade(self, rest: bytes) -> None:
        """Read a request again without its Upgrade, which is not offered here (RFC 9110, 7.8).

        The parser would leave its body to the other protocol. Java's HttpClient, for one, asks for
        h2c with the first request of a connection.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        head = [b"%b %b HTTP/%b" % (method, self.url, version)]
        head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + rest)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ARG002 - old
        """uvicorn: give a request to the application: of now, not of when the client connected."""
        if self._surplus and cycle.scope["path"] not in OPEN_PATHS:
            self._refuse(_overloaded())
        else:
            super()._start_asgi_task(cycle, self.config.loaded_app)

    def _set_on_disconnect(self, call: Callable[[], None] | None) -> None:
        self._on_disconnect = call
        if call is not None and self.transport.is_closing():
            self.loop.call_soon(call)  # it left before anybody wanted to know

    def _count_header_bytes(self, number: int) -> None:
        self._num_header_bytes += number
        if self._num_header_bytes > self._limits.max_header_bytes:
            self._refuse(HeadersTooLarge("Too many header bytes (limits.max_header_bytes)."))

    def _start_arrival_timer(self) -> None:
        self._arrival_timer = self.loop.call_later(self._limits.arrival_s, self._cut_off)

    def _stop_arrival_timer(self) -> None:
        timer, self._arrival_timer = self._arrival_timer, None
        if timer is not None:
            timer.cancel()

    def _cut_off(self) -> None:
        """A request, or a new connection's first byte, did not arrive in time."""
        self._arrival_timer = None
        if not self._arriving or (not self._in_head and self.cycle.response_started):
            self.transport.close()
            return
        self.scope["state"][CUT_OFF] = True
        error = ReceiveTimeout(f"The request did not arrive within {self._limits.arrival_s:g} s.")
        self._refuse(error)

    def _refuse(self, error: GatewayError) -> None:
        """Answer with an error of ours and close; nothing reaches the application."""
        self._stop_arrival_timer()
        if self.transport.is_closing():
            return
        body = error.body()
        head = [
            b"HTTP/1.1 %d %b" % (error.status, error.phrase.encode()),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"connection: close",
            *(b"%b: %b" % header for header in error.headers()),
        ]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + body)
        self.transport.close()


def _overloaded() -> Overloaded:
    return Overloaded("Too many connections (limits.max_connections).")
