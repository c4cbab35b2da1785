"""Listeners: sockets bound by us, served by uvicorn in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import uvicorn

from gateway.api.asgi import AsgiApp
from gateway.api.probes import starting
from gateway.certificates import check_listener
from gateway.config.access import ListenTlsConfig
from gateway.http import ConnectionLimits, LimitedProtocol

# Load balancers keep idle connections for 60 s (AWS ALB's default); a server that closes earlier
# makes them answer 502 now and then.
KEEP_ALIVE_S = 75
# As many connections may wait to be accepted as Linux allows by default (net.core.somaxconn).
BACKLOG = 4096


# Enough for a burst of 1,500 connections to be in within 5 s, and few enough that the handles which
# find nothing cost no more than the connection itself.
ACCEPTS_A_ROUND = 16

# Between two looks at whether anything runs, while draining: an exit that is late by this much is
# not noticed, and 10,000 connections are looked through in a millisecond.
_LOOK_S = 0.02
# For requests that were ended at the limit to tell their clients. Whoever does not read by then
# has a full window, and will not.
_LAST_WORDS_S = 1.0


class ListenError(Exception):
    """An address cannot be bound; the message says which and why."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ListenError: The port is taken, not allowed, or the host is not an address of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on {host}:{port}: unknown host") from error
    except OSError as error:
        what = os.strerror(error.errno or 0)
        raise ListenError(f"cannot listen on {host}:{port}: {what.lower()}") from error
    # Inherited by what it accepts. asyncio's own loop sets it only where the protocol was named.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def reserve(host: str, port: int) -> socket.socket:
    """Return a socket that keeps an address for the workers of one host, and takes no connections.

    Each of them listens at that address by a socket of its own, see `share`, and the kernel gives
    each new connection to one of these.

    Raises:
        ListenError: As `bind`.
    """
    if port:
        bind(host, port).close()  # two fleets of workers on one port would share it in silence
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return share(family, address)
    except OSError as error:
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def share(family: int, address: Any) -> socket.socket:
    """Return a socket that is bound to an address, beside others of this user, and not listening.

    Args:
        family: Of the address.
        address: As `socket.getsockname` of a reserved one returns it.

    Raises:
        OSError: Somebody else has it.
    """
    shared = socket.socket(family, socket.SOCK_STREAM)
    try:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            shared.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as create_server does
        shared.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shared.bind(address)
    except BaseException:
        shared.close()
        raise
    return shared


def duplicates(bound: socket.socket) -> list[socket.socket]:
    """Return further handles of a listening socket, so that a loop's round accepts more than one.

    uvloop takes one connection a round from each handle. With 1,500 busy streams a round is 50 ms
    long, and a burst of connections, probes among them, would wait for seconds.
    """
    return [bound.dup() for _ in range(ACCEPTS_A_ROUND - 1)]


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    """Return a URL under which a listening socket is reached from this machine."""
    if bound.family == socket.AF_UNIX:
        return f"unix:{bound.getsockname()}"
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@dataclass(frozen=True, slots=True)
class DrainTimes:
    """How long a listener that was told to stop serves on.

    Attributes:
        notice_s: At least, even where nothing runs: in this time balancers notice.
        limit_s: At most, the notice included; then running requests are ended.
    """

    notice_s: float
    limit_s: float


class Server(uvicorn.Server):
    """One listener. Signals are the gateway's business, as it has two listeners and an order.

    Answers from the start, as `gateway.api.probes.starting` does, until it is given an application.

    Args:
        limits: Of client connections.
        drain: How long it serves on once `stop` was called.
        tls: Certificate and key files; None for plain HTTP.

    Attributes:
        drain: In force now.
    """

    def __init__(
        self, limits: ConnectionLimits, drain: DrainTimes, tls: ListenTlsConfig | None = None
    ) -> None:
        self.drain = drain
        self._tls = tls
        self._stopping = asyncio.Event()
        self._at_once = False
        super().__init__(
            uvicorn.Config(
                cast("Any", starting),  # ASGI by names of our own
                http=self._protocol(limits),
                ssl_certfile=tls.cert_file if tls else None,
                ssl_keyfile=tls.key_file if tls else None,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                # A replica's own Date and Server pass; ours would stand beside them.
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )

    def give(self, app: AsgiApp) -> None:
        """Serve by this application from the next request on, on open connections too."""
        self.config.app = self.config.loaded_app = cast("Any", app)

    def configure(self, limits: ConnectionLimits, drain: DrainTimes) -> None:
        """Put other limits in force, and a certificate that was renewed, for new connections.

        Raises:
            TlsError: The certificate cannot be used. Nothing has changed.
        """
        if self._tls is not None and self.config.ssl is not None:
            check_listener(self._tls)  # what fails below would leave half of a pair behind
            self.config.ssl.load_cert_chain(self._tls.cert_file, self._tls.key_file)
        self.drain = drain
        self.config.http_protocol_class = self._protocol(limits)

    def _protocol(self, limits: ConnectionLimits) -> type[asyncio.Protocol]:
        protocol = partial(LimitedProtocol, limits, self._stopping.is_set)
        return cast("type[asyncio.Protocol]", protocol)

    def stop(self, *, at_once: bool = False) -> None:
        """Drain, then return from `serve`; with `at_once`, end what runs now as at the limit."""
        self._at_once = self._at_once or at_once
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """uvicorn: serve until `stop`. Its own loop wakes up ten times a second to look."""
        await self.on_tick(0)
        await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals alone."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn: drain, close everything, and return when no request runs any more.

        The listener is open as long as anything runs: a connection that comes meanwhile is
        answered, and would be reset otherwise (docs/adr/0019).
        """
        if not await self._drained():
            self._cancel_requests()  # each tells its client, and lets go of its replica
            await self._quiet_within(_LAST_WORDS_S)
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        for connection in self._connections():
            connection.transport.close()
        await asyncio.sleep(_LOOK_S)  # TLS says goodbye first
        for connection in self._connections():
            connection.transport.abort()
        if self.server_state.tasks:  # stuck on a client that does not read
            self._cancel_requests()
            await asyncio.wait(self.server_state.tasks, timeout=_LAST_WORDS_S)

    async def _drained(self) -> bool:
        """Serve on until nothing runs and the notice is over; False where the limit comes first."""
        clock = asyncio.get_running_loop().time
        began = clock()
        for connection in self._connections():
            connection.keep_alive_no_longer()
        while not self._at_once and clock() < began + self.drain.limit_s:
            if clock() >= began + self.drain.notice_s:
                if not self._runs():
                    return True
                self._close_idle()
            await asyncio.sleep(_LOOK_S)
        return not self._runs()

    async def _quiet_within(self, within_s: float) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + within_s
        while self._runs() and clock() < until:  # noqa: ASYNC110 - uvicorn has no such event
            await asyncio.sleep(_LOOK_S)

    def _runs(self) -> bool:
        return bool(self.server_state.tasks) or any(c.busy for c in self._connections())

    def _close_idle(self) -> None:
        # A fresh connection is about to bring its request; it goes last.
        for connection in self._connections():
            if not (connection.busy or connection.fresh):
                connection.transport.close()

    def _cancel_requests(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()

    def _connections(self) -> list[LimitedProtocol]:
        return cast("list[LimitedProtocol]", list(self.server_state.connections))
