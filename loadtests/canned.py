"""Many addresses in one process that answer at once, always the same, as replicas do.

A simulator each would be hundreds of processes; what they cost the gateway is the same.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

Answers = Mapping[bytes, bytes]
"""Whole answers by path."""

_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Canned(asyncio.Protocol):
    """Answers requests, one after the other, on a connection that stays open.

    Args:
        answers: All others are a 404.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._transport: asyncio.Transport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            found = _LENGTH.search(head)
            whole = end + 4 + (int(found[1]) if found else 0)
            if len(self._received) < whole:
                return
            self._received = self._received[whole:]
            if self._transport is not None:
                self._transport.write(self._answers.get(head.split(b" ", 2)[1], _NOT_FOUND))


def replica(model: Mapping[str, object], metrics: str) -> dict[bytes, bytes]:
    """Return how a vLLM replica answers probes.

    Args:
        model: Its row in the list of models, but for `object`.
        metrics: Its page.
    """
    models = {"object": "list", "data": [{"object": "model", **model}]}
    return {
        b"/health": answer(b"", "text/plain"),
        b"/v1/models": answer(json.dumps(models).encode()),
        b"/version": answer(b'{"version":"0.32.0"}'),
        b"/metrics": answer(metrics.encode(), "text/plain; version=0.0.4"),
    }


def answer(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    """Return a whole answer."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve(count: int, answers: Callable[[int], Answers]) -> None:
    """Serve until killed; print one line of JSON with all addresses.

    Args:
        count: How many addresses.
        answers: Returns those of one of them by its number.
    """
    loop = asyncio.get_running_loop()
    urls = []
    for number in range(count):
        server = await loop.create_server(partial(Canned, answers(number)), "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    print(json.dumps({"event": "ready", "url": urls[0], "urls": urls}), flush=True)
    await asyncio.Event().wait()


_NOT_FOUND: Final = answer(b'{"detail":"Not Found"}', status="404 Not Found")
