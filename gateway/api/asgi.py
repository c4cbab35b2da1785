"""The client's side of a request, over plain ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from gateway.api.access import ANYBODY, Caller
from gateway.api.encoding import decode_body
from gateway.errors import GatewayError, PromptTooLarge, ReceiveTimeout
from gateway.proxy.headers import Header, first, is_event_stream
from routing.value import value

# Copied in 50 us into memory that is new; 2 MB take 1 ms.
INLINE_JOIN_BYTES = 128 * 1024

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class ClientLeft(Exception):
    """The client closed its connection before the answer was whole."""


@value
class ClientRequest:
    """A request as the client sent it.

    Attributes:
        target: Path and query, as bytes on the wire.
        headers: In order, names in lower case.
        body: Without its content encoding.
        client: The client's address.
        caller: Who sent it, by API key.
        undone: Headers that no longer hold, as what they say was undone here.
    """

    method: str
    path: str
    target: bytes
    headers: Sequence[Header]
    body: bytes
    scheme: str
    client: str
    caller: Caller = ANYBODY
    undone: frozenset[bytes] = frozenset()


_UNDONE = frozenset({b"content-encoding"})


async def read_request(
    scope: Scope, receive: Receive, caller: Caller, max_body_bytes: int
) -> ClientRequest:
    """Read a request whole, and undo its content encoding.

    Raises:
        InvalidRequest, UnsupportedEncoding: Its content encoding cannot be undone.
        PromptTooLarge: The body is longer than `max_body_bytes`; reading stops there.
        ReceiveTimeout: The listener cut it off because it did not come in time.
        ClientLeft: The client went away.
    """
    headers: Sequence[Header] = scope["headers"]
    declared = first(headers, b"content-length")
    if declared is not None and int(declared) > max_body_bytes:
        raise _too_large(max_body_bytes)
    encoding = (first(headers, b"content-encoding") or b"").decode("latin-1")
    body = await _whole(await _read_body(scope, receive, max_body_bytes), encoding, max_body_bytes)
    query = scope.get("query_string", b"")
    path = scope.get("raw_path") or scope["path"].encode()
    return ClientRequest(
        method=scope["method"],
        path=scope["path"],
        target=path + b"?" + query if query else path,
        headers=headers,
        body=body,
        scheme=scope.get("scheme", "http"),
        client=scope["client"][0] if scope.get("client") else "unknown",
        caller=caller,
        undone=_UNDONE if encoding else frozenset(),
    )


async def _read_body(scope: Scope, receive: Receive, max_body_bytes: int) -> list[bytes]:
    pieces: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            if scope.get("state", {}).get(CUT_OFF):
                raise ReceiveTimeout("The request did not arrive in time.")
            raise ClientLeft
        piece = message.get("body", b"")
        num_bytes += len(piece)
        if num_bytes > max_body_bytes:
            raise _too_large(max_body_bytes)
        pieces.append(piece)
        if not message.get("more_body"):
            return pieces


async def _whole(pieces: list[bytes], encoding: str, max_body_bytes: int) -> bytes:
    """Return a body without its content encoding; what takes long is done in a thread.

    How long a body will take to unpack, its length does not tell.
    """
    if not encoding and sum(map(len, pieces)) <= INLINE_JOIN_BYTES:
        return b"".join(pieces)  # one piece is not copied
    return await asyncio.to_thread(_decoded, pieces, encoding, max_body_bytes)


def _decoded(pieces: list[bytes], encoding: str, max_body_bytes: int) -> bytes:
    body = b"".join(pieces)
    pieces.clear()  # or the body would be there twice while it is unpacked
    return decode_body(body, encoding, max_body_bytes)


def _too_large(max_body_bytes: int) -> PromptTooLarge:
    return PromptTooLarge(
        f"The body is longer than {max_body_bytes} bytes (limits.max_body_bytes)."
    )


CUT_OFF = "warmroute.cut_off"
"""In the scope's state: our own listener answered 408 and closed, as the body did not come."""

ON_DISCONNECT = "warmroute.on_disconnect"
"""In the scope's state, from our own listener: takes what to call when the client leaves.

Waiting in `receive` for that needs a task of its own a request, a tenth of a short one's cost.
"""


class WhileConnected:
    """Runs a block as long as the client is there; when it leaves, cancels it where it waits.

    The request must have been read whole: from then on ASGI's receive tells only the end, of the
    connection or of our own answer.

    Args:
        loop: The running one; asking for it is a system call on Python 3.11.

    Raises:
        ClientLeft: From the block, when the client left.
    """

    __slots__ = ("_client", "_left", "_loop", "_receive", "_register", "_task", "_watcher")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        scope: Scope,
        receive: Receive,
        client: ClientResponse,
    ) -> None:
        self._loop = loop
        self._register = scope.get("state", {}).get(ON_DISCONNECT)
        self._receive = receive
        self._client = client
        self._left = False
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._task = asyncio.current_task(self._loop)
        if self._register is not None:
            self._register(self._leave)
        else:
            self._watcher = asyncio.create_task(self._watch())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._register is not None:
            self._register(None)
        elif self._watcher is not None:
            self._watcher.cancel()
        task, self._task = self._task, None  # whoever says from now on that it left is too late
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        if cancelled and self._left and task is not None and task.uncancel() == 0:
            raise ClientLeft from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        # Once: a second cancel would stay on the task when the first one has become ClientLeft.
        if not self._client.ended and not self._left and self._task is not None:
            self._left = True
            self._task.cancel()


class ClientResponse:
    """Writes one answer to the client.

    Args:
        send: ASGI.
        headers: Every answer carries them: CORS, the request id.

    Attributes:
        status: The status that was sent; 0 before.
        is_event_stream: The answer is a stream of server-sent events.
        ended: The body is whole.
    """

    def __init__(self, send: Send, headers: Sequence[Header] = ()) -> None:
        self._send = send
        self._headers = headers
        self.status = 0
        self.is_event_stream = False
        self.ended = False

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Send status and headers; ours replace those of the same name."""
        self.status = status
        self.is_event_stream = is_event_stream(headers)
        ours = [name for name, _ in self._headers if name != b"vary"]
        both = [header for header in headers if header[0] not in ours]
        both += self._headers
        await self._send({"type": "http.response.start", "status": status, "headers": both})

    async def write(self, piece: bytes) -> None:
        """Send a piece of the body; waits while the client reads slower than we write."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, last_piece: bytes = b"") -> None:
        """End the body."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": last_piece, "more_body": False})

    async def fail(self, error: GatewayError) -> None:
        """Answer with an error, where nothing was sent yet."""
        body = error.body()
        framing = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.start(error.status, [*framing, *error.headers()])
        await self.end(body)
