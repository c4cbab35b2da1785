"""Asks one replica for a page, over connections of its own. Off the request path."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from gateway.errors import ConnectTimeout, ReplicaTimeout, ReplicaUnreachable
from gateway.proxy.headers import Header
from gateway.proxy.transport import Deadlines, Origin, Transport, UpstreamRequest
from gateway.replicas.registry import Replica

T = TypeVar("T")

# A page of /metrics with many adapters and LMCache is about 1 MB; beyond this it is no such page.
MAX_BODY_BYTES = 8 * 1024 * 1024
_HEADERS: Sequence[Header] = ((b"user-agent", b"warmroute"), (b"accept", b"*/*"))


class ProbeTransport(Transport, Protocol):
    """A transport that tells when a kept connection was lost."""

    @property
    def num_lapsed(self) -> int:
        """Kept connections that could not be used again."""
        ...


class Refused(Exception):
    """A replica answered with another status than a good one.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class BodyTooLarge(ValueError):
    """An answer is longer than any that an engine gives."""


class Line:
    """A way to ask one replica.

    Args:
        transport: Used for nothing else, so that its connections tell of this replica alone.
        replica: Whom to ask.
        timeout_s: For each answer, from the connection to the body's end; may change.
    """

    def __init__(self, transport: ProbeTransport, replica: Replica, timeout_s: float) -> None:
        self.replica = replica
        self._transport = transport
        self.timeout_s = timeout_s

    @property
    def num_lapsed(self) -> int:
        """Connections that were lost while they were kept: see `HttpToolsTransport`."""
        return self._transport.num_lapsed

    async def get(self, path: str) -> bytes:
        """Return the body of a page.

        Raises:
            Refused: Another status than 2xx.
            TimeoutError: Not all of it came in time.
            UpstreamError: There is no connection, or it broke, or speaks no HTTP.
            BodyTooLarge: More than `MAX_BODY_BYTES`.
        """
        key = self.replica.upstream_key  # a reload may have changed it
        headers = [*_HEADERS, (b"authorization", b"Bearer " + key.encode())] if key else [*_HEADERS]
        request = UpstreamRequest(b"GET", path.encode(), headers, b"")
        deadlines = Deadlines(self.timeout_s, self.timeout_s, self.timeout_s)
        async with asyncio.timeout(self.timeout_s):
            response = await self._transport.request(self.replica.origin, request, deadlines)
            try:
                pieces = [await response.read()]
                num_bytes = len(pieces[0])
                while not response.ended and pieces[-1]:
                    pieces.append(await response.read())
                    num_bytes += len(pieces[-1])
                    if num_bytes > MAX_BODY_BYTES:
                        raise BodyTooLarge(f"{path} is longer than {MAX_BODY_BYTES} bytes")
            finally:
                response.close()
        if not 200 <= response.status < 300:
            raise Refused(response.status)
        return b"".join(pieces)

    async def ask(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Return what a page says; None where it is not served, or not as vLLM serves it.

        Raises:
            TimeoutError: Not all of it came in time.
            UpstreamError: There is no connection, or it broke, or speaks no HTTP.
        """
        try:
            return parse(await self.get(path))
        except (Refused, ValueError):
            return None

    def renew(self) -> None:
        """Ask over a new connection next time."""
        self._transport.close()

    async def num_addresses(self) -> int:
        """Return how many addresses of one family the replica's host name has; 1 if unknown."""
        origin = self.replica.origin
        try:
            async with asyncio.timeout(self.timeout_s):
                return await _num_addresses(origin)
        except (OSError, UnicodeError):  # TimeoutError is one
            return 1


async def _num_addresses(origin: Origin) -> int:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    # A host may well have one address of each family.
    families = [family for family, address in {(entry[0], entry[4][0]) for entry in found}]
    return max((families.count(family) for family in families), default=1)


def _is_about_tls(error: BaseException) -> bool:
    if isinstance(error, ReplicaUnreachable) and isinstance(error.__cause__, ConnectionResetError):
        return True  # who accepts a connection and then resets it does so in the TLS handshake
    cause: BaseException | None = error
    while cause is not None:
        # That TLS wanted to read on when the connection ended is no complaint.
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLWantReadError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def what_is_wrong(error: Exception) -> str:
    """Return a failed probe's reason, in one word for metrics and logs."""
    if isinstance(error, Refused):
        return f"status_{error.status}"
    if isinstance(error, TimeoutError | ReplicaTimeout | ConnectTimeout):
        return "timeout"
    return "tls" if _is_about_tls(error) else "unreachable"
