"""Addresses that answer as replicas do, at once and always the same."""

import asyncio
import json

from loadtests.canned import Canned, answer, replica
from tests.support.replicas import WAIT_S

ANSWERS = {**replica({"id": "m"}, "up 1\n"), b"/v1/completions": answer(b'{"choices": []}')}


async def received(*pieces: bytes) -> bytes:
    """Send a connection's bytes piece by piece, and return all that comes back."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Canned(ANSWERS), "127.0.0.1", 0)
    async with server, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        found = await reader.read()
        writer.close()
        await writer.wait_closed()
    return found


async def test_requests_are_answered_in_their_order_however_they_are_cut():
    post = b'POST /v1/completions HTTP/1.1\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    sent = b"GET /health HTTP/1.1\r\n\r\n" + post + b"GET /metrics HTTP/1.1\r\n\r\n"
    expected = b"".join(ANSWERS[path] for path in (b"/health", b"/v1/completions", b"/metrics"))
    assert await received(sent) == expected
    assert await received(*(sent[i : i + 5] for i in range(0, len(sent), 5))) == expected


async def test_an_unknown_path_is_a_404():
    assert (await received(b"GET /nowhere HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 Not Found")


def test_a_model_is_listed_as_vllm_lists_it():
    body = ANSWERS[b"/v1/models"].partition(b"\r\n\r\n")[2]
    assert json.loads(body) == {"object": "list", "data": [{"object": "model", "id": "m"}]}
