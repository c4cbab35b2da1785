"""The two listeners of a gateway: the public one for clients, the admin one for operators."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from gateway.config.models import GatewayConfig
from gateway.http import ConnectionLimits, allowed_connections
from gateway.server import DrainTimes, Server, bind, duplicates, url_of

# For a scrape or an explanation that runs when all else has ended.
_ADMIN_DRAIN = DrainTimes(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Sockets:
    """What a gateway listens on: bound, and perhaps not yet listening."""

    public: socket.socket
    admin: socket.socket


def bind_both(config: GatewayConfig) -> Sockets:
    """Bind the addresses of a configuration.

    Raises:
        ListenError: One of them cannot be bound.
    """
    public = bind(config.listen.host, config.listen.port)
    try:
        return Sockets(public, bind(config.admin.host, config.admin.port))
    except BaseException:
        public.close()
        raise


class Listeners:
    """Both listeners, answering from `serve` on.

    Args:
        config: TLS, limits and drain times.
        sockets: Closed when serving ends.
        late: Take clients' connections only once `accept` is called. Where others serve the same
            address, nobody has to hear of one that starts.
    """

    def __init__(self, config: GatewayConfig, sockets: Sockets, *, late: bool = False) -> None:
        self._scheme = "https" if config.listen.tls else "http"
        self._public_socket, self._admin_socket = sockets.public, sockets.admin
        self._stopping = asyncio.Event()
        self._accepting = asyncio.Event()
        if not late:
            self.accept()
        self.public = Server(_limits(config), _drain(config), config.listen.tls)
        self.admin = Server(_limits(config), _ADMIN_DRAIN)

    @property
    def url(self) -> str:
        """Where the public listener is reached from this machine."""
        return url_of(self._public_socket, self._scheme)

    @property
    def admin_url(self) -> str:
        """Where the admin listener is reached from this machine."""
        return url_of(self._admin_socket)

    @property
    def drain_s(self) -> float:
        """Seconds that running requests get to end, once `stop` is called."""
        return self.public.drain.limit_s

    def accept(self) -> None:
        """Take clients' connections from now on, where that had to wait."""
        self._accepting.set()

    def is_stopping(self) -> bool:
        """Return whether `stop` was called."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Let running requests end, then return from `serve`; a second call ends them at once."""
        if self._stopping.is_set():
            self.public.stop(at_once=True)
            self.admin.stop(at_once=True)
        self._stopping.set()
        self._accepting.set()

    async def stopping(self) -> None:
        """Wait until `stop` is called."""
        await self._stopping.wait()

    def configure(self, config: GatewayConfig) -> None:
        """Put other limits, drain times and a renewed certificate in force, for new connections.

        Raises:
            TlsError: The certificate cannot be used. Nothing has changed.
        """
        self.public.configure(_limits(config), _drain(config))
        self.admin.configure(_limits(config), _ADMIN_DRAIN)

    async def serve(self) -> None:
        """Serve until `stop`; the public one ends first, so that its drain can be watched."""
        serving_admin = asyncio.create_task(self.admin.serve(sockets=[self._admin_socket]))
        serving_public = asyncio.create_task(self._serve_public())
        stopping = asyncio.create_task(self._stopping.wait())
        ended = {stopping, serving_public, serving_admin}
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        self._stopping.set()
        self._accepting.set()
        self.public.stop()
        await serving_public
        self.admin.stop()
        await serving_admin

    async def _serve_public(self) -> None:
        await self._accepting.wait()
        if self._stopping.is_set():
            self._public_socket.close()
            return
        listening = [self._public_socket, *duplicates(self._public_socket)]
        await self.public.serve(sockets=listening)


def _limits(config: GatewayConfig) -> ConnectionLimits:
    return ConnectionLimits(
        allowed_connections(config.limits.max_connections),
        config.limits.max_header_bytes,
        config.timeouts.receive_s,
    )


def _drain(config: GatewayConfig) -> DrainTimes:
    return DrainTimes(config.timeouts.drain_notice_s, config.timeouts.drain_s)
