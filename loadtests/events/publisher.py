"""Publishes the KV events of several engines, as fast as it is told.

`python -m loadtests.events.publisher --count 4 --blocks 25600` encodes all batches first and prints
one line of JSON with the addresses. Each phase is started by a line on its control socket.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

import msgspec
import zmq

from loadtests.events.upstream import BLOCK_SIZE

# A prefill step of 2,048 tokens, as engines batch by default: one event of 128 blocks.
BLOCKS_AN_EVENT: Final = 128
_VOCABULARY: Final = 128_000
_TURN: Final = 4  # batches between two looks at the clock
_SEED: Final = 7


class Engine:
    """One engine's publisher, with two generations of blocks encoded ahead.

    Each phase is a list of batches: `fill` and `fill_up` store the first generation, `churn`
    replaces it by the second one, and `churn_back` that by the first.

    Args:
        context: Of all sockets.
        rng: Makes tokens and hashes.
        num_blocks: Of one generation; the second one replaces the first, event by event.
    """

    def __init__(self, context: "zmq.Context[Any]", rng: Random, num_blocks: int) -> None:
        self._pub = context.socket(zmq.PUB)
        self._pub.sndhwm = 0
        self._replay = context.socket(zmq.ROUTER)
        self.endpoint, self.replay_endpoint = _bound(self._pub), _bound(self._replay)
        self._next = 0
        first = list(_generation(rng, num_blocks))
        second = list(_generation(rng, num_blocks))
        fill = [_batch([stored]) for stored in first]
        self.fill, self.fill_up = fill[: len(fill) // 2], fill[len(fill) // 2 :]
        self.churn = _replacing(first, second)
        self.churn_back = _replacing(second, first)

    def send(self, payload: bytes) -> None:
        """Publish one batch."""
        self._pub.send_multipart((b"", self._next.to_bytes(8, "big"), payload))
        self._next += 1

    def answer_replays(self) -> None:
        """Answer that there is nothing to replay."""
        while self._replay.poll(0):
            peer = self._replay.recv_multipart()[0]
            self._replay.send_multipart((peer, b"", b"", b"\xff" * 8, b""))


def _bound(socket: "zmq.Socket[bytes]") -> str:
    socket.bind("tcp://127.0.0.1:*")
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _generation(rng: Random, num_blocks: int) -> Iterator[dict[str, Any]]:
    """Yield the events of prompts of one event each, with blocks that nobody shares."""
    for _ in range(num_blocks // BLOCKS_AN_EVENT):
        yield {
            "type": "BlockStored",
            "block_hashes": [rng.getrandbits(64) for _ in range(BLOCKS_AN_EVENT)],
            "parent_block_hash": None,
            "token_ids": [rng.randrange(_VOCABULARY) for _ in range(BLOCKS_AN_EVENT * BLOCK_SIZE)],
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": None,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }


def _replacing(gone: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[bytes]:
    return [_batch([*_removal(old), stored]) for old, stored in zip(gone, new, strict=True)]


def _removal(stored: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the removals of an event's blocks: one each, as vLLM sends them."""
    fields = {"type": "BlockRemoved", "medium": "GPU", "group_idx": 0}
    return [{**fields, "block_hashes": [name]} for name in reversed(stored["block_hashes"])]


def _batch(events: Sequence[dict[str, Any]]) -> bytes:
    return msgspec.msgpack.encode([1.0, events, 0])


async def _publish(engines: Sequence[Engine], phase: str, blocks_s: float) -> None:
    """Publish a phase, the engines in turn; `blocks_s` is over all of them, 0 for no limit."""
    batches = list(zip(*(getattr(engine, phase) for engine in engines), strict=True))
    flat = [(engine, batch) for row in batches for engine, batch in zip(engines, row, strict=True)]
    began = time.monotonic()
    for number, (engine, payload) in enumerate(flat):
        engine.send(payload)
        if blocks_s:
            due = began + (number + 1) * BLOCKS_AN_EVENT / blocks_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        elif number % _TURN == 0:
            await asyncio.sleep(0)


async def _serve(count: int, num_blocks: int) -> None:
    context: zmq.Context[Any] = zmq.Context()
    rng = Random(_SEED)
    engines = [Engine(context, rng, num_blocks) for _ in range(count)]

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        phase, blocks_s = (await reader.readline()).decode().split()
        await _publish(engines, phase, float(blocks_s))
        writer.close()

    server = await asyncio.start_server(control, "127.0.0.1", 0)
    ready = {
        "event": "ready",
        "url": "",
        "control_port": server.sockets[0].getsockname()[1],
        "sources": [
            {"endpoint": engine.endpoint, "replay_endpoint": engine.replay_endpoint}
            for engine in engines
        ],
    }
    print(json.dumps(ready), flush=True)
    while True:
        for engine in engines:
            engine.answer_replays()
        await asyncio.sleep(0.05)


def main(argv: Sequence[str] | None = None) -> None:
    """Publish until killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.events.publisher")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True, help="of each engine")
    options = parser.parse_args(argv)
    asyncio.run(_serve(options.count, options.blocks))


if __name__ == "__main__":
    main()
