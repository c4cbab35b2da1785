"""A stand-in for a gateway: real sockets, answers by script, no model and no routing."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

NUM_REPLICAS = 2


@dataclass
class StandIn:
    """Answers chats with `max_tokens` words; the last message's text can ask for a failure."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    most_at_once: int = 0
    open_now: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_now += 1
        self.most_at_once = max(self.most_at_once, self.open_now)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
            body = json.loads(await reader.readexactly(length)) if length else {}
            writer.write(self.answer(head.split()[1], body))
            await writer.drain()
        finally:
            self.open_now -= 1
            writer.close()

    def answer(self, path: str, body: dict[str, Any]) -> bytes:
        if path == "/v1/models":
            return response(200, json.dumps({"data": [{"id": "stand-in"}]}).encode())
        if path != "/v1/chat/completions":
            return response(404, b'{"error": {"message": "no such\\npath"}}')
        self.bodies.append(body)
        said = body["messages"][-1]["content"]
        if said == "refuse":
            return response(503, b'{"error": {"message": "no replica"}}')
        replica = f"replica-{len(self.bodies) % NUM_REPLICAS}"
        stream = events(body["max_tokens"], len(body["messages"]))
        if said == "close early":
            return response(200, stream, replica)[:-60]
        if said == "leave out [DONE]":
            return response(200, stream.replace(b"data: [DONE]\n\n", b""), replica)
        if said == "send an error":
            return response(200, b'data: {"error": {"message": "engine died"}}\n\n', replica)
        return response(200, stream, replica)


def events(num_words: int, num_messages: int) -> bytes:
    chunks = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    chunks += [{"choices": [{"delta": {"content": f" w{n}"}}]} for n in range(num_words)]
    usage = {"prompt_tokens": 10 * num_messages, "completion_tokens": num_words}
    usage["prompt_tokens_details"] = {"cached_tokens": 4 * num_messages}
    chunks.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def response(status: int, body: bytes, replica: str = "") -> bytes:
    kind = "text/event-stream; charset=utf-8" if body.startswith(b"data:") else "application/json"
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    if replica:
        # In small chunks, cut anywhere, as a network does.
        pieces = [body[at : at + 37] for at in range(0, len(body), 37)]
        chunked = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
        head += f"X-Warmroute-Replica: {replica}\r\nTransfer-Encoding: chunked\r\n\r\n"
        return head.encode() + chunked
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
async def stand_in() -> AsyncIterator[StandIn]:
    server = StandIn()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as sockets:
        server.url = "http://127.0.0.1:{1}".format(*sockets.sockets[0].getsockname())
        yield server


@pytest.fixture
def stand_in_type() -> type[StandIn]:
    return StandIn
