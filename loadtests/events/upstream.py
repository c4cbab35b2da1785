"""Addresses that answer as replicas do, at once and always the same.

`python -m loadtests.events.upstream --count 4` prints one line of JSON with all addresses.
"""

import argparse
import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

MODEL: Final = "events"
BLOCK_SIZE: Final = 16
# Room for whatever a measurement publishes.
NUM_BLOCKS: Final = 10_000_000
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Upstream(asyncio.Protocol):
    """Answers requests, one after the other, on a connection that stays open."""

    def __init__(self) -> None:
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
                self._transport.write(_ANSWERS.get(head.split(b" ", 2)[1], _NOT_FOUND))


def _answer(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


_METRICS: Final = (
    "process_start_time_seconds 1700000000.0\n"
    f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",num_gpu_blocks="{NUM_BLOCKS}"}} 1.0\n'
)
_COMPLETION: Final[Mapping[str, Any]] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": MODEL,
    "choices": [{"index": 0, "text": "a", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 256, "completion_tokens": 1, "total_tokens": 257},
}
_NOT_FOUND: Final = _answer(b'{"detail":"Not Found"}', status="404 Not Found")
_ANSWERS: Final[Mapping[bytes, bytes]] = MappingProxyType(
    {
        b"/health": _answer(b"", "text/plain"),
        b"/v1/models": _answer(json.dumps({"object": "list", "data": [{"id": MODEL}]}).encode()),
        b"/version": _answer(b'{"version":"0.32.0"}'),
        b"/metrics": _answer(_METRICS.encode(), "text/plain; version=0.0.4"),
        b"/v1/completions": _answer(json.dumps(_COMPLETION).encode()),
    }
)


async def _serve(count: int) -> None:
    loop = asyncio.get_running_loop()
    urls = []
    for _ in range(count):
        server = await loop.create_server(Upstream, "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    print(json.dumps({"event": "ready", "url": urls[0], "urls": urls}), flush=True)
    await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.events.upstream")
    parser.add_argument("--count", type=int, required=True)
    asyncio.run(_serve(parser.parse_args(argv).count))


if __name__ == "__main__":
    main()
