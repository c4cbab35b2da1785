"""Area B: statuses. A replica's own reach the client; ours say whose fault it was, and no more."""

import asyncio
import json
import re
import socket
import time

import pytest

from gateway.config.load import config_from_flags
from tests.support.clients import post
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
TOO_LONG = b'{"object":"error","message":"maximum context length is 4096 tokens","code":400}'


def chat(stream):
    messages = [{"role": "user", "content": "x"}]
    return {"model": "m", "stream": stream, "messages": messages, "max_tokens": 999999}


async def answers(conversation):
    await conversation.answer(b"{}")


ERRORS = [
    (b"400 Bad Request", TOO_LONG, b"application/json", None),
    (b"404 Not Found", b'{"detail":"Not Found"}', b"application/json", None),
    (b"422 Unprocessable Entity", b'{"detail":[]}', b"application/json; charset=utf-8", None),
    (b"429 Too Many Requests", b'{"error":{}}', b"application/json", b"7"),
    (b"503 Service Unavailable", b"loading", b"text/plain; charset=utf-8", b"120"),
    (b"500 Internal Server Error", b"<h1>no</h1>", b"text/html", None),
    (b"418 Custom Phrase", b"", b"application/problem+json", None),
]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_b037_an_error_status_reaches_the_client_as_itself(replicas, gateways, raw, stream):
    """Status, Content-Type, body and Retry-After are the replica's, for streams as for answers."""

    async def script(conversation):
        status, body, kind, retry_after = ERRORS[len(replica.received) - 1]
        extra = b"retry-after: %b\r\n" % retry_after if retry_after else b""
        await conversation.answer(body, status=status, kind=kind, extra=extra)

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for status, body, kind, retry_after in ERRORS:
        await client.send(post(CHAT, chat(stream)))
        answer = await client.answer()
        assert (answer.status, answer.body) == (int(status[:3]), body)
        assert answer.all(b"content-type") == [kind]
        assert answer.all(b"retry-after") == ([retry_after] if retry_after else [])
    assert len(replica.received) == len(ERRORS), "none was tried again"


async def resets(conversation):
    conversation.reset()


async def closes(conversation):
    conversation.writer.close()


async def talks_garbage(conversation):
    await conversation.send(b"\x16\x03\x01\x00\xa5 this is no status line\r\n\r\n")


async def wrong_version(conversation):
    await conversation.send(b"HTTP/9.9 200 OK\r\ncontent-length: 2\r\n\r\n{}")


async def switches_protocols(conversation):
    head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    await conversation.send(head + b"PRI")


async def floods_with_1xx(conversation):
    while True:
        await conversation.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 50)
        await asyncio.sleep(0)


async def floods_with_hints(conversation):
    while True:
        await conversation.send(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 50)
        await asyncio.sleep(0)


async def sends_huge_headers(conversation):
    await conversation.send(b"HTTP/1.1 200 OK\r\nx-big: " + b"x" * 70_000 + b"\r\n\r\n")


async def sends_endless_headers(conversation):
    await conversation.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await conversation.send(b"x-header: 12345678\r\n" * 50)
        await asyncio.sleep(0)


async def says_nothing(conversation):
    await conversation.client_left()


def assert_is_ours(answer, status, reason, replica):
    """A JSON error of OpenAI's shape that tells nothing of the inside."""
    assert answer.status == status
    assert answer.header(b"content-type") == b"application/json"
    error = answer.json()["error"]
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert (error["code"], error["reason"]) == (status, reason)
    text = answer.body.decode()
    assert not re.search(r"\d+\.\d+\.\d+\.\d+|Traceback|\.py|Errno|Exception|[a-z]Error\(", text)
    assert str(replica.port) not in text
    assert "replica.test" not in text


NO_HTTP = [
    resets,
    closes,
    talks_garbage,
    wrong_version,
    switches_protocols,
    floods_with_1xx,
    floods_with_hints,
    sends_huge_headers,
    sends_endless_headers,
]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_b039_a_replica_that_speaks_no_http_is_a_502_and_a_silent_one_a_504(
    replicas, gateways, raw, stream
):
    """Resets, garbage, 1xx floods and endless headers: 502. No byte in time: 504. Always JSON."""
    [replica] = await replicas(resets)
    limits = {"timeouts": {"first_byte_s": 1.0}, "ejection": {"failures": 1_000}}
    gateway = await gateways(replica, **limits)
    client = await raw(gateway)
    for replica.script in NO_HTTP:
        await client.send(post(CHAT, chat(stream)))
        assert_is_ours(await client.answer(), 502, "stream_broken", replica)
    replica.script = says_nothing
    await client.send(post(CHAT, chat(stream)))
    assert_is_ours(await client.answer(), 504, "replica_timeout", replica)
    await until(gateway.requests)
    assert await gateway.in_flight() == 0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_b039_a_refused_connection_is_a_503(replicas, gateways, raw, stream):
    """Nobody listens: 503 with Retry-After, before and after the replica is known to be gone."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, health={"interval_s": 30.0})
    await replica.stop()
    client = await raw(gateway)
    for _ in range(2):
        await client.send(post(CHAT, chat(stream)))
        answer = await client.answer()
        assert_is_ours(answer, 503, "no_eligible_replica", replica)
        assert answer.header(b"retry-after") == b"1"


class FullBacklog:
    """A listening socket whose backlog is full: the kernel lets further connects hang."""

    def __init__(self, port):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(0)
        self.waiting = []
        for _ in range(4):
            self.waiting.append(socket.socket())
            self.waiting[-1].setblocking(False)
            self.waiting[-1].connect_ex(("127.0.0.1", port))

    def close(self):
        for sock in (*self.waiting, self.listener):
            sock.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_b039_a_connect_timeout_is_a_504(replicas, gateways, raw, stream):
    """A replica to which no connection comes about in time: 504, like every timeout."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, health={"interval_s": 30.0}, timeouts={"connect_s": 0.3})
    await replica.stop()
    full = FullBacklog(replica.port)
    try:
        client = await raw(gateway)
        started = time.perf_counter()
        await client.send(post(CHAT, chat(stream)))
        answer = await client.answer()
        assert 0.25 < time.perf_counter() - started < 2.0
        assert_is_ours(answer, 504, "replica_timeout", replica)
    finally:
        full.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_b039_a_name_that_does_not_resolve_is_a_503(
    replicas, gateways, raw, stream, monkeypatch
):
    """A replica's host name that DNS no longer knows: 503."""
    real = socket.getaddrinfo
    known = True

    def resolve(host, *arguments, **options):
        if host in ("replica.test", b"replica.test"):
            if not known:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = "127.0.0.1"
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    [replica] = await replicas(answers)
    config = config_from_flags([f"http://replica.test:{replica.port}"])
    gateway = await gateways(config, health={"interval_s": 30.0})
    known = False
    client = await raw(gateway)
    await client.send(post(CHAT, chat(stream)))
    assert_is_ours(await client.answer(), 503, "no_eligible_replica", replica)
    json.dumps(gateway.log)
