"""Passes TCP connections on, so that a subscriber can be cut off while both sides live.

python -m loadtests.conformance.forwarder 5657:5557 5658:5558
"""

import asyncio
import contextlib
import json
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

_CHUNK_BYTES: Final = 65_536


async def forward(pairs: Sequence[tuple[int, int]]) -> None:
    """Listen on the first port of each pair, and connect to the second; until cancelled."""
    async with contextlib.AsyncExitStack() as servers:
        for listen, target in pairs:
            server = await asyncio.start_server(_passing_to(target), "127.0.0.1", listen)
            await servers.enter_async_context(server)
        print(json.dumps({"url": [f"tcp://127.0.0.1:{listen}" for listen, _ in pairs]}), flush=True)
        await asyncio.Event().wait()


def _passing_to(port: int) -> Callable[[StreamReader, StreamWriter], Awaitable[None]]:
    async def connected(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # the engine restarts: ZMQ tries again
            writer.close()
            return
        await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))
        writer.close()
        to_writer.close()

    return connected


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:  # one side is gone: the other has to go too
        writer.close()


def _pair(text: str) -> tuple[int, int]:
    listen, target = text.split(":")
    return int(listen), int(target)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(forward([_pair(argument) for argument in sys.argv[1:]]))
