"""One pipelined connection: calls go out as they come, and replies come back in that order.

A call that its caller gave up on leaves the connection as it is: its reply is read and dropped
when it comes. With a connection for each call, as client libraries have it, every deadline that
passes would cost a connection, just when the server has the least time to accept new ones
(docs/adr/0029).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from gateway.redis.address import Credentials, Endpoint
from gateway.redis.errors import CallRefused, LinkDown, LinkError

Argument = bytes | str | int | float
Reply = Any
"""bytes, int, None or a list of these."""

# Replies awaited on one connection. A server that is behind by so many is not keeping up, and
# what waits would be answered too late for anybody.
MAX_PENDING = 4096
# Bytes of commands that the socket did not take yet.
MAX_UNSENT_BYTES = 8 * 1024 * 1024


class Connection(asyncio.Protocol):
    """Commands out, replies in.

    Made by `connect`. Futures that it hands out carry errors as values, as nobody may be left to
    take an exception.

    Args:
        on_lost: Called once when the connection is gone, however that came.
        now: Monotonic seconds.
    """

    def __init__(self, on_lost: Callable[[], None], now: Callable[[], float]) -> None:
        self._on_lost = on_lost
        self._now = now
        self._reader = hiredis.Reader()
        self._pending: deque[tuple[float, asyncio.Future[Reply | LinkError]]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand the replies that are whole now to those who wait for them."""
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                _, future = self._pending.popleft()
                if not future.done():
                    is_error = isinstance(reply, hiredis.ReplyError)
                    future.set_result(refusal(reply) if is_error else reply)
        except (hiredis.HiredisError, IndexError):  # not Redis, or a reply that nobody asked for
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """Tell all who wait."""
        self._transport = None
        while self._pending:
            _, future = self._pending.popleft()
            if not future.done():
                future.set_result(LinkDown("lost"))
        self._on_lost()

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def waiting_s(self) -> float:
        """Return for how long the oldest reply is awaited; 0 where none is."""
        return self._now() - self._pending[0][0] if self._pending else 0.0

    def send(self, *command: Argument) -> asyncio.Future[Reply | LinkError]:
        """Send one command.

        Returns:
            Its reply, or the error as a value. To be cancelled at will.

        Raises:
            LinkDown: It was not sent.
        """
        return self.send_all([command])[0]

    def send_all(
        self, commands: Sequence[Sequence[Argument]]
    ) -> list[asyncio.Future[Reply | LinkError]]:
        """Send several commands at once; see `send`."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise LinkDown("lost")
        if (
            len(self._pending) + len(commands) > MAX_PENDING
            or transport.get_write_buffer_size() > MAX_UNSENT_BYTES
        ):
            raise LinkDown("busy")
        now, new = self._now(), self._loop.create_future
        futures = [new() for _ in commands]
        transport.write(b"".join([_pack(one) for one in commands]))
        self._pending.extend((now, future) for future in futures)
        return futures

    def close(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()


def _pack(command: Sequence[Argument]) -> bytes:
    # hiredis' stub describes a tuple of one part.
    return cast("bytes", hiredis.pack_command(cast("Any", tuple(command))))


def refusal(error: hiredis.ReplyError) -> CallRefused:
    """Return a server's error as ours."""
    text = str(error)
    code = text.partition(" ")[0]
    # A script's own failure may begin with anything, and the code becomes a label.
    return CallRefused(code if re.fullmatch("[A-Z]{2,16}", code) else "ERR", text)


async def connect(
    endpoint: Endpoint,
    credentials: Credentials,
    tls: ssl.SSLContext | None,
    on_lost: Callable[[], None],
    now: Callable[[], float],
) -> Connection:
    """Return an open connection of which the server knows who we are.

    Args:
        endpoint: Of the server.
        credentials: Ours.
        tls: None for plain TCP.
        on_lost: See `Connection`; called too where this fails after the connection was made.
        now: Monotonic seconds.

    Raises:
        OSError: Nobody listens, or the TLS handshake failed.
        CallRefused: The server does not let us in.
        LinkDown: It closed the connection.
    """
    loop = asyncio.get_running_loop()

    def make() -> Connection:
        return Connection(on_lost, now)

    if endpoint.port:
        # The name on the certificate is the one that we were told.
        name = endpoint.host if tls is not None else None
        _, connection = await loop.create_connection(
            make, endpoint.host, endpoint.port, ssl=tls, server_hostname=name
        )
    else:
        _, connection = await loop.create_unix_connection(make, endpoint.host)
    try:
        await _log_in(connection, credentials)
    except BaseException:
        connection.close()
        raise
    return connection


async def _log_in(connection: Connection, credentials: Credentials) -> None:
    if not credentials.password:
        return
    user = [credentials.username] if credentials.username else []
    try:
        await ask(connection, "AUTH", *user, credentials.password)
    except CallRefused as error:
        # Sentinels mostly ask for no password where their servers do.
        if "without any password" not in str(error):
            raise


async def ask(connection: Connection, *command: Argument) -> Reply:
    """Send one command and return its reply.

    Raises:
        LinkError: There is none.
    """
    reply = await connection.send(*command)
    if isinstance(reply, LinkError):
        raise reply
    return reply
