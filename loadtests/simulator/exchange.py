"""One HTTP request and its answer over ASGI, without a framework: an event costs one send."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Exchange:
    """What a handler reads from and writes to."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._scope = scope
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> str | None:
        """Return a request header by its lower-case name."""
        for key, value in self._scope["headers"]:
            if key == name:
                return bytes(value).decode("latin-1")
        return None

    def flag(self, name: str) -> bool:
        """Tell whether a boolean query parameter is set to true."""
        values = parse_qs(self._scope["query_string"].decode("latin-1")).get(name, [])
        return bool(values) and values[-1].lower() in {"true", "1"}

    async def body(self) -> bytes:
        """Read the whole request body.

        Raises:
            ClientGone: The client left meanwhile.
        """
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    async def client_left(self) -> None:
        """Return when the client has closed the connection, or has got its whole answer."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply_json(self, value: object, status: int = 200) -> None:
        """Answer with a JSON document."""
        await self.reply(msgspec.json.encode(value), status=status)

    async def reply(
        self,
        body: bytes = b"",
        *,
        status: int = 200,
        content_type: bytes | None = JSON,
        headers: Headers | None = None,
    ) -> None:
        """Answer with a whole body."""
        head = [(b"content-length", str(len(body)).encode())]
        if content_type is not None:
            head.append((b"content-type", content_type))
        await self._start(status, head + (headers or []))
        await self._send({"type": "http.response.body", "body": body})

    async def start_stream(self) -> None:
        """Begin a stream of server-sent events."""
        await self._start(200, [(b"content-type", EVENT_STREAM)])

    async def send(self, chunk: bytes) -> None:
        """Write one event, whole and at once."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end_stream(self) -> None:
        """End the stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: Headers) -> None:
        # vLLM's CORS layer puts this on every answer.
        headers.append((b"vary", b"Origin"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
