"""Hundreds of addresses in one process, each answering probes as a vLLM replica does.

`python -m loadtests.scale.endpoints --count 300` prints one line of JSON with all addresses. A
simulator each would be 300 processes; what a probe costs the gateway is the same.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

MODEL: Final = "scale"
# Lines and bytes of vLLM 0.32's page after some traffic: 706 and 60,907.
_NUM_METRIC_LINES: Final = 700


class Endpoint(asyncio.Protocol):
    """Answers GETs, one after the other, on a connection that stays open."""

    def __init__(self, answers: Mapping[bytes, bytes]) -> None:
        self._answers = answers
        self._transport: asyncio.Transport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client connected."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        *heads, self._received = (self._received + data).split(b"\r\n\r\n")
        for head in heads:
            path = head.split(b" ", 2)[1]
            if self._transport is not None:
                self._transport.write(self._answers.get(path, _NOT_FOUND))


def answers(start_time_s: float) -> Mapping[bytes, bytes]:
    """Return the answers of one replica by path.

    Args:
        start_time_s: What its metrics say of its process's start.
    """
    models = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 32768}]}
    return MappingProxyType(
        {
            b"/health": _answer(b"", "text/plain"),
            b"/v1/models": _answer(json.dumps(models).encode(), "application/json"),
            b"/version": _answer(b'{"version":"0.32.0"}', "application/json"),
            b"/metrics": _answer(_metrics(start_time_s).encode(), "text/plain; version=0.0.4"),
        }
    )


def _metrics(start_time_s: float) -> str:
    labels = f'engine="0",model_name="{MODEL}"'
    buckets = [
        f'vllm:scale_{number // 20}_seconds_bucket{{{labels},le="{number % 20}.0"}} {number}.0'
        for number in range(_NUM_METRIC_LINES)
    ]
    ours = [
        f"process_start_time_seconds {start_time_s}",
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="5120",{labels}}} 1.0',
        f"vllm:num_requests_running{{{labels}}} 0.0",
        f"vllm:num_requests_waiting{{{labels}}} 0.0",
    ]
    return "\n".join([*buckets, *ours, ""])


def _answer(body: bytes, kind: str, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


_NOT_FOUND: Final = _answer(b'{"detail":"Not Found"}', "application/json", "404 Not Found")


async def _serve(count: int) -> None:
    loop = asyncio.get_running_loop()
    urls = []
    for number in range(count):
        endpoint = partial(Endpoint, answers(1.7e9 + number))
        server = await loop.create_server(endpoint, "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    print(json.dumps({"event": "ready", "url": urls[0], "urls": urls}), flush=True)
    await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.scale.endpoints")
    parser.add_argument("--count", type=int, required=True)
    asyncio.run(_serve(parser.parse_args(argv).count))


if __name__ == "__main__":
    main()
