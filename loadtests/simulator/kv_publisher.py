"""The ZMQ side of a replica: live KV events, and a replay of the last ones.

Source:
    vllm/distributed/kv_events.py of vLLM 0.32 (frames, buffer, end marker).
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from loadtests.simulator.kv_encoding import encode_batch
from routing.lab.kv_events import KvEvent

# vLLM's defaults: batches kept for replay, and messages queued for a slow subscriber.
BUFFER_BATCHES = 10_000
HIGH_WATER_MARK = 100_000
_MAX_QUEUE_SIZE = 100_000
_END_OF_REPLAY = b"\xff" * 8
_SEQ_BYTES = 8


@dataclass(frozen=True, slots=True)
class KvEventOptions:
    """Where and how to publish; port 0 lets the system choose.

    Unlike vLLM, which connects to an address with a concrete host, this always binds.
    """

    endpoint: str = "tcp://127.0.0.1:0"
    replay_endpoint: str = "tcp://127.0.0.1:0"
    topic: str = ""
    form: str = "map"


class KvPublisher:
    """PUB socket and replay ROUTER, both on the event loop's thread.

    Args:
        options: Where and how.
        block_size: Tokens a block.
        rank: The engine's data-parallel rank; added to ports that are given.

    Raises:
        OSError: An endpoint cannot be bound.
    """

    def __init__(self, options: KvEventOptions, block_size: int, rank: int = 0) -> None:
        self._options = options
        self._rank = rank
        self._block_size = block_size
        self._topic = options.topic.encode()
        self._next_seq = 0
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=BUFFER_BATCHES)
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.sndhwm = HIGH_WATER_MARK
        self._replay = self._context.socket(zmq.ROUTER)
        # A whole buffer may leave at once; vLLM's default of 1,000 would cut it short.
        self._replay.sndhwm = 0
        try:
            self.endpoint = _bind(self._pub, options.endpoint, rank)
            self.replay_endpoint = _bind(self._replay, options.replay_endpoint, rank)
        except OSError:
            self._context.destroy(linger=0)
            raise

    def sources(self) -> dict[str, object]:
        """Return what GET /kv_event_sources tells about this publisher."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": BUFFER_BATCHES,
            "hwm": HIGH_WATER_MARK,
            "max_queue_size": _MAX_QUEUE_SIZE,
            "topic": self._options.topic,
        }

    def start(self) -> None:
        """Serve replays from now on."""
        asyncio.get_running_loop().add_reader(self._replay.fileno(), self._answer_replays)

    def stop(self) -> None:
        """Close both sockets."""
        asyncio.get_running_loop().remove_reader(self._replay.fileno())
        self._context.destroy(linger=0)

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send one batch; nothing for no events, as vLLM."""
        if not events:
            return
        payload = encode_batch(
            events, time.time(), self._block_size, self._options.form, self._rank
        )
        seq = self._next_seq.to_bytes(_SEQ_BYTES, "big")
        self._next_seq += 1
        self._buffer.append((seq, payload))
        self._pub.send_multipart((self._topic, seq, payload))
        # Sending may have swallowed the edge that announces a replay request.
        self._answer_replays()

    def _answer_replays(self) -> None:
        while self._replay.poll(0):
            frames = self._replay.recv_multipart()
            if len(frames) == 3 and len(frames[2]) == _SEQ_BYTES:
                self._send_replay(frames[0], int.from_bytes(frames[2], "big"))

    def _send_replay(self, peer: bytes, start: int) -> None:
        for seq, payload in self._buffer:
            if int.from_bytes(seq, "big") >= start:
                self._replay.send_multipart((peer, b"", self._topic, seq, payload))
        self._replay.send_multipart((peer, b"", b"", _END_OF_REPLAY, b""))


def _bind(socket: "zmq.Socket[bytes]", endpoint: str, rank: int) -> str:
    base, _, port = endpoint.rpartition(":")
    if port.isdecimal() and int(port):  # not to one that the system chooses, as vLLM
        endpoint = f"{base}:{int(port) + rank}"
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(f"{endpoint}: {error.strerror}") from error
    if not endpoint.endswith(":0"):
        return endpoint
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
