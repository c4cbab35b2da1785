"""Publishers of KV events that send exactly what a test says: live, for replay only, or never."""

import asyncio
from dataclasses import dataclass, field

import msgspec
import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


def stored(hashes, tokens, parent=None, **fields):
    """A `BlockStored` of blocks as long as the tokens make them."""
    size = len(tokens) // len(hashes)
    event = {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent}
    event |= {"token_ids": list(tokens), "block_size": size, "lora_id": None, "medium": "GPU"}
    event |= {"lora_name": None, "extra_keys": None, "group_idx": 0}
    return event | {"kv_cache_spec_kind": "full_attention"} | fields


def removed(*hashes, **fields):
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"} | fields


CLEARED = {"type": "AllBlocksCleared"}


@dataclass
class Publisher:
    """PUB and replay ROUTER of one engine process.

    Attributes:
        buffer: What a replay can send, by number; tests may take out of it.
        asked_from: First numbers of the replays that were asked for.
        topic_in_replies: As vLLM from 0.26 on.
    """

    replays: bool = True
    topic: str = "kv@test"
    topic_in_replies: bool = True
    rank: int = 0
    host: str = "127.0.0.1"
    next_number: int = 0
    buffer: dict[int, bytes] = field(default_factory=dict)
    asked_from: list[int] = field(default_factory=list)

    async def start(self, port=0, replay_port=0):
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        for socket in (self._pub, self._router):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, int("[" in self.host))
        self.endpoint = self._bind(self._pub, port)
        self.replay_endpoint = self._bind(self._router, replay_port)
        self._task = asyncio.create_task(self._serve_replays())
        return self

    async def stop(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    @property
    def ports(self):
        return [int(e.rpartition(":")[2]) for e in (self.endpoint, self.replay_endpoint)]

    def source(self):
        """Its entry in /kv_event_sources."""
        said = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.endpoint}
        replay = self.replay_endpoint if self.replays else None
        return said | {"replay_endpoint": replay, "topic": self.topic}

    def keep(self, *events):
        """Number a batch and keep it for replays; live, it is lost."""
        number, self.next_number = self.next_number, self.next_number + 1
        self.buffer[number] = msgspec.msgpack.encode([1.0, list(events), self.rank])
        return number

    async def send(self, *events):
        """Publish a batch."""
        await self.send_again(self.keep(*events))

    async def send_again(self, number):
        await self.send_payload(number, self.buffer[number])

    async def send_payload(self, number, payload):
        frames = [self.topic.encode(), number.to_bytes(8, "big"), payload]
        await self._pub.send_multipart(frames)

    def _bind(self, socket, port):
        socket.bind(f"tcp://{self.host}:{port or '*'}")
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def _serve_replays(self):
        while True:
            peer, _, start = await self._router.recv_multipart()
            self.asked_from.append(int.from_bytes(start, "big"))
            topic = [self.topic.encode()] if self.topic_in_replies else []
            for number, payload in sorted(self.buffer.items()):
                if number >= self.asked_from[-1]:
                    reply = [peer, b"", *topic, number.to_bytes(8, "big"), payload]
                    await self._router.send_multipart(reply)
            await self._router.send_multipart([peer, b"", *([b""] if topic else []), END, b""])
