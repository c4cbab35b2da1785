"""Area B: old, careful and hurried clients: HTTP/1.0, Expect, reused connections, methods, CORS."""

import asyncio
import hashlib
import json
import shutil
import time

import pytest

from tests.support.clients import post
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
BODY = '{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = '{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
KEY = "sk-case"
AUTH = {"keys": [{"name": "team-a", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}]}


async def answers(conversation):
    await conversation.answer(b"{}")


class Lockstep:
    """Streams numbered events, the next one only once the client has seen the last."""

    def __init__(self, number):
        self.seen = [asyncio.Event() for _ in range(number)]

    def event(self, number):
        return b'data: {"number":%d}\n\n' % number

    async def __call__(self, conversation):
        await conversation.start_stream()
        for number, seen in enumerate(self.seen):
            await conversation.chunk(self.event(number))
            await seen.wait()
        await conversation.end()


@pytest.mark.parametrize("connection", [None, "keep-alive", "close"])
async def test_b023_an_http_1_0_client_gets_a_stream_without_chunks(
    replicas, gateways, raw, connection
):
    """A stream to HTTP/1.0 has no chunked framing, ends with the connection, and is not held up.

    The gateway's only HTTP parser is httptools (docs/adr/0007), so this runs once.
    """
    events = Lockstep(5)
    [replica] = await replicas(events)
    gateway = await gateways(replica)
    client = await raw(gateway)
    headers = [f"connection: {connection}"] if connection else []
    await client.send(post(CHAT, STREAM, *headers, version="1.0"))
    head = (await client.head()).lower()
    assert head.split()[1] == b"200"
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert b"connection: keep-alive" not in head
    for number, seen in enumerate(events.seen):
        async with asyncio.timeout(5):
            event = await client.reader.readexactly(len(events.event(number)))
        assert event == events.event(number)
        seen.set()
    assert await client.rest() == b""
    assert replica.received[0].line.endswith(b" HTTP/1.1")


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_b023_an_http_1_0_client_gets_a_whole_answer_without_chunks(
    replicas, gateways, raw, chunked
):
    """A whole answer to HTTP/1.0 has a length or ends with the connection, also if it was chunked.

    The same holds for our own answers: errors and the model list.
    """

    async def script(conversation):
        if not chunked:
            await conversation.answer(b'{"id":"x"}')
            return
        await conversation.start_stream(kind=b"application/json")
        await conversation.chunk(b'{"id":')
        await conversation.chunk(b'"x"}')
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    for request, status in [
        (post(CHAT, BODY, version="1.0"), 200),
        (post(CHAT, "{", version="1.0"), 400),
        (post("/nowhere", BODY, version="1.0"), 404),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", 200),
    ]:
        client = await raw(gateway)
        await client.send(request)
        answer = await client.answer()
        assert (answer.status, answer.whole) == (status, True)
        assert answer.header(b"transfer-encoding") is None
        assert isinstance(answer.json(), dict)
        assert await client.rest() == b"", "the connection ends"


def expecting(num_bytes, *headers):
    lines = [f"POST {CHAT} HTTP/1.1", "host: gw", "expect: 100-continue", *headers]
    return "\r\n".join([*lines, f"content-length: {num_bytes}"]).encode() + b"\r\n\r\n"


async def test_b024_a_client_that_asks_first_is_told_to_continue(replicas, gateways, raw):
    """`100 Continue` comes within 50 ms, then the body is taken; Expect ends at the gateway.

    The fastest of five: a busy machine is not what is measured.
    """
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    waits_s = []
    for _ in range(5):
        started = time.perf_counter()
        await client.send(expecting(len(BODY)))
        assert (await client.head()).startswith(b"HTTP/1.1 100 ")
        waits_s.append(time.perf_counter() - started)
        await client.send(BODY.encode())
        assert (await client.answer()).status == 200
    assert min(waits_s) < 0.05
    assert all(request.header(b"expect") is None for request in replica.received)
    assert [request.body for request in replica.received] == [BODY.encode()] * 5


@pytest.mark.parametrize(
    ("headers", "num_bytes", "status"),
    [(["authorization: Bearer wrong"], 2_000_000, 401), ([], 57, 401), (None, 50_000_000, 413)],
    ids=["wrong_key", "no_key", "too_large"],
)
async def test_b024_a_client_that_asks_first_is_refused_without_its_body(
    replicas, gateways, raw, headers, num_bytes, status
):
    """What the head alone decides (key, length) is answered instead of `100 Continue`."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, auth=AUTH)
    headers = [f"authorization: Bearer {KEY}"] if headers is None else headers
    client = await raw(gateway)
    await client.send(expecting(num_bytes, *headers))
    assert (await client.answer()).status == status
    assert await client.rest() == b"", "the body will not come, so the connection ends"
    assert replica.received == []


@pytest.mark.parametrize("key", [KEY, "wrong"])
async def test_b024_curl_sends_2_mib_with_expect(replicas, gateways, require, key, tmp_path):
    """curl with `Expect: 100-continue` and 2 MiB is served, or refused for its key, at once.

    It would wait for longer for its 100 (1 s by default) than the test waits for curl.
    """
    require("curl", shutil.which("curl") is not None, "apt-get install curl")
    [replica] = await replicas(answers)
    gateway = await gateways(replica, auth=AUTH)
    body = BODY.replace("hi", "a " * 1024 * 1024)
    (tmp_path / "body").write_text(body)
    arguments = ["-sS", "--noproxy", "*", "-H", "Expect: 100-continue", "-w", "%{http_code}"]
    arguments += ["--expect100-timeout", "60"]
    arguments += ["-H", f"Authorization: Bearer {key}", "-o", str(tmp_path / "answer")]
    arguments += ["--data-binary", f"@{tmp_path / 'body'}", gateway.gateway.url + CHAT]
    curl = await asyncio.create_subprocess_exec(
        "curl", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(curl.communicate(), 10)
    assert (curl.returncode, errors) == (0, b"")
    assert output == (b"200" if key == KEY else b"401")
    assert [request.body for request in replica.received] == ([body.encode()] * (key == KEY))


async def echoes(conversation):
    """Answer with the request's own text, as a stream where one is asked for."""
    fields = json.loads(conversation.request.body)
    text = fields["prompt"].encode()
    if fields.get("stream"):
        await conversation.start_stream()
        await conversation.chunk(b"data: " + text[:5])
        await conversation.chunk(text[5:] + b"\n\n")
        await conversation.end()
    else:
        await conversation.answer(text)


def completion(number, stream):
    text = f"<{number}>" + "x" * (number * 37 % 4001)
    wanted = f"data: {text}\n\n" if stream else text
    return json.dumps({"model": "m", "prompt": text, "stream": stream}), wanted.encode()


async def test_b156_100_requests_in_a_row_on_one_connection(replicas, gateways, raw):
    """Requests of many sizes, streams and whole answers mixed, all get their own answer."""
    [replica] = await replicas(echoes)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for number in range(100):
        body, wanted = completion(number, stream=number % 3 == 0)
        await client.send(post("/v1/completions", body))
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, wanted)
    assert len(replica.received) == 100


@pytest.mark.parametrize("stream", [False, True])
async def test_b156_pipelined_requests_are_answered_in_order(replicas, gateways, raw, stream):
    """Two and five requests in one segment get their answers in order."""
    [replica] = await replicas(echoes)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for number in (2, 5):
        pairs = [completion(n, stream) for n in range(number)]
        await client.send(b"".join(post("/v1/completions", body) for body, _ in pairs))
        for _, wanted in pairs:
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, wanted)


async def test_b156_nothing_after_connection_close_is_processed(replicas, gateways, raw):
    """What follows a request with `Connection: close` in the same segment is not read."""
    [replica] = await replicas(echoes)
    gateway = await gateways(replica)
    client = await raw(gateway)
    body, wanted = completion(1, stream=False)
    second, _ = completion(2, stream=False)
    await client.send(
        post("/v1/completions", body, "connection: close") + post("/v1/completions", second)
    )
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, wanted)
    assert await client.rest() == b""
    assert [request.body for request in replica.received] == [body.encode()]


async def test_b029_head_is_get_without_a_body(replicas, gateways, raw):
    """HEAD has the status and the headers of GET, its length included, and no body."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for path in ("/health", "/v1/models", "/livez", "/readyz", "/ping"):
        await client.send(f"GET {path} HTTP/1.1\r\nhost: gw\r\n\r\n".encode())
        got = await client.answer()
        await client.send(f"HEAD {path} HTTP/1.1\r\nhost: gw\r\n\r\n".encode())
        headed = await client.answer(to_head=True)
        varying = {b"x-request-id", b"date"}
        assert got.status == headed.status == 200, path
        assert [h for h in got.headers if h[0] not in varying] == [
            h for h in headed.headers if h[0] not in varying
        ]
        await client.send(post(CHAT, BODY))  # a body after HEAD would be read as this answer's head
        assert (await client.answer()).body == b"{}"


WRONG_METHODS = [
    ("GET", CHAT, "POST"),
    ("DELETE", CHAT, "POST"),
    ("PUT", "/v1/completions", "POST"),
    ("PATCH", "/v1/embeddings", "POST"),
    ("HEAD", CHAT, "POST"),
    ("POST", "/v1/models", "GET"),
    ("DELETE", "/health", "GET"),
]


async def test_b029_a_wrong_method_is_a_405_that_names_the_right_one(replicas, gateways, raw):
    """The path exists: 405 with Allow, never a 404."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for method, path, allowed in WRONG_METHODS:
        await client.send(f"{method} {path} HTTP/1.1\r\nhost: gw\r\n\r\n".encode())
        answer = await client.answer(to_head=method == "HEAD")
        assert answer.status == 405, (method, path)
        assert allowed in answer.header(b"allow").decode().split(", ")
        if method != "HEAD":
            assert answer.json()["error"]["code"] == 405
    assert replica.received == []


@pytest.mark.parametrize(
    "line", ["OPTIONS * HTTP/1.1", "CONNECT example.com:443 HTTP/1.1", "BREW /v1/models HTTP/1.1"]
)
async def test_b029_odd_methods_break_nothing(replicas, gateways, raw, line):
    """`OPTIONS *`, CONNECT and made-up methods get an answer that is no 5xx, or a closed door."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(f"{line}\r\nhost: gw\r\nconnection: close\r\n\r\n".encode())
    answered = await client.rest()
    assert not answered or answered.split()[1][:1] in (b"2", b"4"), answered
    assert not [x for x in gateway.log if x["event"] == "internal_error"]
    assert (await gateway.client.post(CHAT, content=BODY)).status_code == 200
    await until(gateway.requests)
