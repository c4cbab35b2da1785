"""Listeners: sockets bound by us, served by uvicorn in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn

from gateway.api.asgi import AsgiApp
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


def duplicates(bound: socket.socket) -> list[socket.socket]:
    """Return further handles of a listening socket, so that a loop's round accepts more than one.

    uvloop takes one connection a round from each handle. With 1,500 busy streams a round is 50 ms
    long, and a burst of connections, probes among them, would wait for seconds.
    """
    return [bound.dup() for _ in range(ACCEPTS_A_ROUND - 1)]


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    """Return a URL under which a listening socket is reached from this machine."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Server(uvicorn.Server):
    """One listener. Signals are the gateway's business, as it has two listeners and an order.

    Args:
        app: What to serve.
        drain_s: Seconds that running requests get once `stop` was called.
        limits: Of client connections.
        tls: Certificate and key files; None for plain HTTP.
    """

    def __init__(
        self,
        app: AsgiApp,
        drain_s: float,
        limits: ConnectionLimits,
        tls: ListenTlsConfig | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                cast("Any", app),  # ASGI by names of our own
                http=cast("type[asyncio.Protocol]", partial(LimitedProtocol, limits)),
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
                timeout_graceful_shutdown=max(1, round(drain_s)),
            )
        )
        self._stopping = asyncio.Event()

    async def main_loop(self) -> None:
        """uvicorn: serve until `stop`. Its own loop wakes up ten times a second to look."""
        await self.on_tick(0)
        await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals alone."""
        yield

    def stop(self) -> None:
        """Accept no further connections, let running requests end, then return from `serve`."""
        self.should_exit = True
        self._stopping.set()
