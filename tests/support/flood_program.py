"""An engine that publishes more KV events than it should: `python flood_program.py RATE SECONDS`.

It prints where it publishes, waits for a line, and sends RATE batches a second. Each is a decode
step of 10 sequences that fill a block each, and removes the blocks of the step 2,000 before. A last
batch stores one block more. Then it prints how many it sent, and answers replays until its input
ends.
"""

import json
import selectors
import sys
import time

import msgspec
import zmq

SIZE = 4  # tokens a block
SEQUENCES = 10
HELD_STEPS = 2000
HELD = SEQUENCES * HELD_STEPS
SEQUENCE_STEPS = 100
# After so many the same blocks come again.
RING = 10_000
# As in vLLM (KVEventsConfig.buffer_steps): what a replay can bring.
BUFFER = 10_000
LAST = list(range(10**6, 10**6 + SIZE))  # tokens of the last block
END = (-1).to_bytes(8, "big", signed=True)
TICK_S = 0.002


def tokens(step: int, sequence: int) -> list[int]:
    """Return the tokens of the block that a sequence fills in a step."""
    first = (sequence * RING + step % RING) * SIZE
    return list(range(first, first + SIZE))


def prompt(step: int, sequence: int) -> list[int]:
    """Return the tokens of a sequence, from its beginning up to a step."""
    begin = step - step % SEQUENCE_STEPS
    return [token for past in range(begin, step + 1) for token in tokens(past, sequence)]


def _payload(step: int) -> bytes:
    gone = [tokens(step - HELD_STEPS, sequence)[0] for sequence in range(SEQUENCES)]
    removed = [
        {"type": "BlockRemoved", "block_hashes": [1 + first], "medium": "GPU", "group_idx": 0}
        for first in gone
    ]
    return _batch([*removed, *(_stored(step, sequence) for sequence in range(SEQUENCES))])


def _stored(step: int, sequence: int) -> dict[str, object]:
    ids = tokens(step, sequence)
    return _block(ids, 1 + ids[0] - SIZE if step % SEQUENCE_STEPS else None)


def _block(ids: list[int], parent: int | None) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": [1 + ids[0]],
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": SIZE,
        "medium": "GPU",
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def _batch(events: list[dict[str, object]]) -> bytes:
    return msgspec.msgpack.encode([1.0, events, 0])


class Flood:
    """PUB and replay ROUTER of one engine."""

    def __init__(self) -> None:
        context: zmq.Context = zmq.Context()
        self._pub, self._router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self._pub.sndhwm = 1000  # libzmq's own: vLLM's 100,000 take a minute to overflow
        self._payloads = [_payload(step) for step in range(RING)]
        self._last: int | None = None
        self.num_sent = 0
        self.endpoints = [self._bound(self._pub), self._bound(self._router)]

    def _bound(self, socket: zmq.Socket) -> str:
        socket.bind("tcp://127.0.0.1:*")
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, count: int) -> None:
        """Publish the next batches."""
        for _ in range(count):
            self._pub.send_multipart((b"", *self._numbered(self.num_sent)))
            self.num_sent += 1

    def send_last(self) -> None:
        """Publish the last batch."""
        self._last = self.num_sent
        self.send(1)

    def answer_replays(self) -> None:
        """Send what was asked for, as far as it is still there."""
        while self._router.poll(0):
            peer, _, start = self._router.recv_multipart()
            first = max(int.from_bytes(start, "big"), self.num_sent - BUFFER)
            for number in range(first, self.num_sent):
                self._router.send_multipart((peer, b"", b"", *self._numbered(number)))
            self._router.send_multipart((peer, b"", b"", END, b""))

    def _numbered(self, number: int) -> tuple[bytes, bytes]:
        payload = self._payloads[number % RING]
        if number == self._last:
            payload = _batch([_block(LAST, None)])
        return number.to_bytes(8, "big"), payload


def main() -> None:
    """Flood once, when told to."""
    rate, seconds = (float(argument) for argument in sys.argv[1:])
    flood = Flood()
    endpoint, replay_endpoint = flood.endpoints
    print(json.dumps({"endpoint": endpoint, "replay_endpoint": replay_endpoint}), flush=True)
    orders = selectors.DefaultSelector()
    orders.register(sys.stdin, selectors.EVENT_READ)
    began = None
    while True:
        flood.answer_replays()
        if orders.select(TICK_S):
            if not sys.stdin.readline():
                return
            began = time.monotonic()
        if began is not None:
            sending_s = min(time.monotonic() - began, seconds)
            flood.send(int(rate * sending_s) - flood.num_sent)
            if sending_s == seconds:
                flood.send_last()
                print(json.dumps({"sent": flood.num_sent}), flush=True)
                began = None


if __name__ == "__main__":
    main()
