"""curl: what people type first, and the corners of HTTP that other clients leave alone."""

import asyncio
import contextlib
import gzip
import json
import re
import shutil
from dataclasses import dataclass

import pytest

from tests.support.api_replicas import DONE, chat_event, path_of, refuses, says_hello, vllm_error
from tests.support.replicas import WAIT_S, until

KEY = "sk-team-a-0123456789"
AUTH = {"keys": [{"name": "team-a", "key": KEY}]}
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
STREAM = json.dumps({**json.loads(CHAT), "stream": True})


@dataclass
class Done:
    """What curl showed: the body, and the conversation as its trace tells it."""

    status: int
    body: bytes
    trace: str

    @property
    def head(self) -> str:
        """Status line and headers of the last answer, in lower case."""
        received = re.findall(
            r"^<= Recv header, .*\n((?:[0-9a-f]{4}: .*\n)+)", self.trace, re.MULTILINE
        )
        lines = [re.sub(r"(?m)^[0-9a-f]{4}: ", "", block).strip() for block in received]
        starts = [n for n, line in enumerate(lines) if line.startswith("HTTP/")]
        return "\n".join(lines[starts[-1] :]).lower()

    def before(self, first: str, second: str) -> bool:
        return 0 <= self.trace.find(first) < self.trace.find(second)


@pytest.fixture
def curl(require, tmp_path):
    """Run curl: `await curl(gateway, path, *flags)`; `body` becomes a file that it sends."""
    require("curl", shutil.which("curl") is not None, "apt-get install curl")

    async def run(gateway, path, *flags, body=None):
        trace = tmp_path / "trace"
        given = ["--silent", "--show-error", "--max-time", f"{WAIT_S:g}", "--trace-ascii", trace]
        if body is not None:
            (tmp_path / "body").write_text(body)
            given += ["-H", "content-type: application/json", "--data-binary", "@body"]
        process = await asyncio.create_subprocess_exec(
            *("curl", *given, *flags, gateway.gateway.url + path),
            stdout=asyncio.subprocess.PIPE,
            cwd=tmp_path,
        )
        out, _ = await process.communicate()
        text = trace.read_text("latin-1")
        answered = re.findall(r"HTTP/1\.[01] (\d{3})", text)
        return Done(int(answered[-1]) if answered else 0, out, text)

    return run


# Expect: 100-continue

BIG = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 2 * 1024 * 1024}]})
# curl sends the body anyway after a second without an answer; it is to wait for ours.
EXPECT = ("-H", "expect: 100-continue", "--expect100-timeout", "30")


async def test_a_body_of_2_mib_is_sent_after_the_100(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth=AUTH)
    bearer = ("-H", f"authorization: Bearer {KEY}")
    done = await curl(gateway, "/v1/chat/completions", *EXPECT, *bearer, body=BIG)
    assert (done.status, json.loads(done.body)["object"]) == (200, "chat.completion")
    assert done.before("HTTP/1.1 100 Continue", "=> Send data")
    [received] = replica.received
    assert received.body == BIG.encode()
    assert received.header(b"expect") is None


async def test_a_wrong_key_is_told_before_the_body_is_sent(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth=AUTH)
    bearer = ("-H", "authorization: Bearer sk-wrong")
    done = await curl(gateway, "/v1/chat/completions", *EXPECT, *bearer, body=BIG)
    assert (done.status, json.loads(done.body)["error"]["reason"]) == (401, "unauthorized")
    assert "100 Continue" not in done.trace
    assert "=> Send data" not in done.trace
    assert replica.received == []


async def test_a_body_that_is_too_long_is_told_before_it_is_sent(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, limits={"max_body_bytes": 1024 * 1024})
    done = await curl(gateway, "/v1/chat/completions", *EXPECT, body=BIG)
    assert (done.status, json.loads(done.body)["error"]["reason"]) == (413, "body_too_large")
    assert "=> Send data" not in done.trace
    assert replica.received == []


# HTTP/1.0


async def test_http_1_0_gets_a_body_with_its_length(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    done = await curl(await gateways(replica), "/v1/chat/completions", "--http1.0", body=CHAT)
    assert (done.status, json.loads(done.body)["object"]) == (200, "chat.completion")
    assert "transfer-encoding" not in done.head
    assert f"content-length: {len(done.body)}" in done.head


@pytest.mark.parametrize("keep_alive", [(), ("-H", "connection: keep-alive")])
async def test_http_1_0_gets_a_stream_that_ends_with_the_connection(
    replicas, gateways, curl, keep_alive
):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica)
    done = await curl(gateway, "/v1/chat/completions", "--http1.0", *keep_alive, body=STREAM)
    assert done.status == 200
    assert "transfer-encoding" not in done.head
    assert "content-length" not in done.head
    assert done.body.startswith(b"data: {")
    assert done.body.endswith(b"\n\n" + DONE)
    assert "closing connection" in done.trace.lower()


async def test_http_1_0_sees_a_stream_break(replicas, gateways, curl):
    async def script(conversation):
        await conversation.start_stream()
        await conversation.chunk(chat_event({"content": "one"}))
        conversation.reset()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    done = await curl(gateway, "/v1/chat/completions", "--http1.0", body=STREAM)
    *_, last = done.body.strip().split(b"\n\n")
    assert b"stream_broken" in last
    assert b"[DONE]" not in done.body


async def test_http_1_0_gets_errors_too(replicas, gateways, curl):
    error = vllm_error("the engine's own words", "BadRequestError", 400)
    [replica] = await replicas(refuses(b"400 Bad Request", error))
    gateway = await gateways(replica)
    done = await curl(gateway, "/v1/chat/completions", "--http1.0", body=CHAT)
    assert (done.status, json.loads(done.body)) == (400, error)
    done = await curl(gateway, "/v1/nothing", "--http1.0")
    assert (done.status, json.loads(done.body)["error"]["reason"]) == (404, "path_not_found")


# Bodies and streams


async def test_a_gzipped_answer_passes_and_is_unpacked_by_curl(replicas, gateways, curl):
    packed = gzip.compress(b'{"answer":"' + b"x" * 5000 + b'"}', mtime=0)

    async def script(conversation):
        assert conversation.request.header(b"accept-encoding").startswith(b"deflate, gzip")
        await conversation.answer(packed, extra=b"content-encoding: gzip\r\n")

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    done = await curl(gateway, "/v1/chat/completions", "--compressed", body=CHAT)
    assert (done.status, len(json.loads(done.body)["answer"])) == (200, 5000)
    assert "content-encoding: gzip" in done.head
    assert f"content-length: {len(packed)}" in done.head


async def test_a_gzipped_request_reaches_the_engine_unpacked(replicas, gateways, curl, tmp_path):
    [replica] = await replicas(says_hello)
    (tmp_path / "packed").write_bytes(gzip.compress(CHAT.encode()))
    flags = ("-H", "content-encoding: gzip", "-H", "content-type: application/json")
    gateway = await gateways(replica)
    done = await curl(gateway, "/v1/chat/completions", *flags, "--data-binary", "@packed")
    assert done.status == 200
    [received] = replica.received
    assert received.body == CHAT.encode()
    assert received.header(b"content-encoding") is None
    assert received.header(b"content-length") == b"%d" % len(CHAT)


async def test_a_chunked_request_arrives_with_its_length(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    flags = ("-H", "transfer-encoding: chunked")
    done = await curl(await gateways(replica), "/v1/chat/completions", *flags, body=CHAT)
    assert done.status == 200
    [received] = replica.received
    assert received.body == CHAT.encode()
    assert received.header(b"transfer-encoding") is None


async def test_every_event_is_shown_before_the_next_one_is_sent(
    replicas, gateways, require, tmp_path
):
    require("curl", shutil.which("curl") is not None, "apt-get install curl")
    events = [chat_event({"content": str(number)}) for number in range(4)]
    gates = [asyncio.Event() for _ in events]

    async def script(conversation):
        await conversation.start_stream()
        for event, gate in zip(events, gates, strict=True):
            await gate.wait()
            await conversation.chunk(event)
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    url = gateway.gateway.url + "/v1/chat/completions"
    async with killed_at_the_end("curl", "-sN", "--json", STREAM, url) as process:
        for event, gate in zip(events, gates, strict=True):
            gate.set()
            async with asyncio.timeout(WAIT_S):
                assert await process.stdout.readexactly(len(event)) == event
        assert await process.stdout.read() == b""
        assert await process.wait() == 0


async def test_control_c_ends_the_request_at_the_replica(replicas, gateways, require):
    require("curl", shutil.which("curl") is not None, "apt-get install curl")
    left = asyncio.Event()

    async def script(conversation):
        await conversation.start_stream()
        await conversation.chunk(chat_event({"content": "one"}))
        await conversation.client_left()
        left.set()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    url = gateway.gateway.url + "/v1/chat/completions"
    async with killed_at_the_end("curl", "-sN", "--json", STREAM, url) as process:
        await process.stdout.readuntil(b"\n\n")
        process.terminate()
        async with asyncio.timeout(1.0):
            await left.wait()
    assert await until(gateway.requests)
    assert await gateway.in_flight() == 0


@contextlib.asynccontextmanager
async def killed_at_the_end(*command):
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


# Methods and paths


async def test_head_is_get_without_the_body(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica)

    def shown(head):  # an id of its own for each request
        return sorted(line for line in head.splitlines() if not line.startswith("x-request-id"))

    for path in ("/v1/models", "/readyz", "/livez", "/ping"):
        got, headed = await curl(gateway, path), await curl(gateway, path, "--head")
        assert (path, got.status, headed.status) == (path, 200, 200)
        assert shown(headed.head) == shown(got.head)
        assert "<= Recv data" not in headed.trace


async def test_head_of_what_takes_post_is_a_405(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica)
    done = await curl(gateway, "/v1/chat/completions", "--head")
    assert done.status == 405
    assert "allow: post" in done.head
    assert "<= Recv data" not in done.trace
    done = await curl(gateway, "/v1/chat/completions")
    assert done.status == 405
    assert "allow: post" in done.head
    assert json.loads(done.body)["error"]["reason"] == "method_not_allowed"
    assert replica.received == []


async def test_other_paths_are_not_there_and_never_a_redirect(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica)
    paths = ("/v1/chat/completions/", "/v1/v1/models", "/metrics", "/reset_prefix_cache", "/")
    for path in paths:
        for flags in ((), ("--head",), ("--request", "POST", "--data", CHAT)):
            done = await curl(gateway, path, *flags)
            assert (path, done.status) == (path, 404)
            assert "location:" not in done.head
    assert replica.received == []


async def test_invocations_and_ping_work_as_on_sagemaker(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica)
    done = await curl(gateway, "/invocations", body=CHAT)
    assert (done.status, json.loads(done.body)["object"]) == (200, "chat.completion")
    assert path_of(replica.received[0]) == b"/invocations"
    assert (await curl(gateway, "/ping", "--request", "POST")).status == 200


async def test_one_connection_serves_many_requests(replicas, gateways, curl):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica)
    again = (gateway.gateway.url + "/v1/chat/completions",) * 3
    done = await curl(gateway, "/v1/chat/completions", *again, body=CHAT)
    assert done.status == 200
    assert len(replica.received) == 4
    assert done.trace.count("Re-using existing connection") == 3
