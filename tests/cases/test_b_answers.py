"""Area B: bodies of answers cross the gateway byte for byte, whatever their framing and size."""

import asyncio
import gzip
import hashlib
import json
import shutil
import zlib

import brotli
import openai
import pytest

from tests.support.clients import post
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024
REQUEST = '{"model":"m","messages":[{"role":"user","content":"h\u00e9llo 你好"}]}'

ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "h\u00e9llo 你好 😀"},
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
RAW_TEXT = json.dumps(ANSWER, indent=4, ensure_ascii=False).encode()
ESCAPED = json.dumps(ANSWER, indent=4, ensure_ascii=True).encode()


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize(
    "body", [RAW_TEXT, ESCAPED, RAW_TEXT + b"\r\n ", b""], ids=["raw", "escaped", "spaced", "empty"]
)
async def test_b013_the_bytes_of_an_answer_are_the_replicas(replicas, gateways, raw, framing, body):
    """Pretty-printed JSON, raw and escaped characters: same bytes, and a length that is theirs."""

    async def script(conversation):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        if framing == "length":
            await conversation.send(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        elif framing == "chunked":
            await conversation.send(head + b"transfer-encoding: chunked\r\n\r\n")
            for start in range(0, len(body), 7):
                await conversation.chunk(body[start : start + 7])
            await conversation.end()
        else:
            await conversation.send(head + b"\r\n" + body)
            conversation.writer.close()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for _ in range(2):  # on one connection: a wrong length would garble the second answer
        await client.send(post(CHAT, REQUEST))
        answer = await client.answer()
        assert (answer.status, answer.whole, answer.body) == (200, True, body)
        lengths = answer.all(b"content-length")
        if framing == "length":
            assert lengths == [b"%d" % len(body)]
        assert len(lengths) + len(answer.all(b"transfer-encoding")) == 1, "one framing, not two"
    assert replica.received[0].body == REQUEST.encode()


PACKED = {
    "gzip": gzip.compress(RAW_TEXT, mtime=0),
    "deflate": zlib.compress(RAW_TEXT),
    "br": brotli.compress(RAW_TEXT),
}


def answers_packed(encoding):
    async def script(conversation):
        extra = b"content-encoding: %b\r\nvary: accept-encoding\r\n" % encoding.encode()
        await conversation.answer(PACKED[encoding], extra=extra)

    return script


@pytest.mark.parametrize("encoding", PACKED)
async def test_b016_a_compressed_answer_passes_as_it_is(replicas, gateways, raw, encoding):
    """A compressed answer keeps its bytes, its Content-Encoding and its length."""
    [replica] = await replicas(answers_packed(encoding))
    gateway = await gateways(replica)
    client = await raw(gateway)
    accepted = "accept-encoding: gzip, deflate, br, zstd"
    await client.send(post(CHAT, REQUEST, accepted))
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, PACKED[encoding])
    assert answer.all(b"content-encoding") == [encoding.encode()]
    assert answer.all(b"content-length") == [b"%d" % len(PACKED[encoding])]
    assert replica.received[0].header(b"accept-encoding") == b"gzip, deflate, br, zstd"


@pytest.mark.parametrize("encoding", PACKED)
async def test_b016_openai_reads_a_compressed_answer(replicas, gateways, encoding):
    """openai-python decodes a compressed answer exactly once."""
    [replica] = await replicas(answers_packed(encoding))
    gateway = await gateways(replica)
    url = f"{gateway.gateway.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        completion = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}]
        )
    assert completion.choices[0].message.content == "h\u00e9llo 你好 😀"


async def test_b016_curl_reads_a_compressed_answer(replicas, gateways, require):
    """`curl --compressed` gets the JSON that the replica meant."""
    require("curl", shutil.which("curl") is not None, "apt-get install curl")
    [replica] = await replicas(answers_packed("gzip"))
    gateway = await gateways(replica)
    arguments = ["--compressed", "-sS", "--noproxy", "*", "-d", REQUEST, gateway.gateway.url + CHAT]
    curl = await asyncio.create_subprocess_exec(
        "curl", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(curl.communicate(), 10)
    assert (curl.returncode, errors, output) == (0, b"", RAW_TEXT)


def embeddings(num_bytes):
    """Return a big answer: a prefix, and numbers up to its size."""
    numbers = (b"0.0123456789," * (num_bytes // 13 + 1))[: num_bytes - 60]
    body = b'{"object":"list","data":[{"embedding":[' + numbers + b"0]}]}"
    return body + b" " * (num_bytes - len(body))


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_b159_a_huge_answer_is_streamed_not_collected(replicas, gateways, raw, framing):
    """64 MiB pass whole, and their beginning is at the client before their end is at the gateway.

    The replica sends the second half only once the client has seen the first byte.
    """
    body = embeddings(64 * MIB)
    first_byte_seen = asyncio.Event()

    async def script(conversation):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        send = conversation.chunk if framing == "chunked" else conversation.send
        framed = b"transfer-encoding: chunked" if framing == "chunked" else b"content-length: %d"
        framed = framed % len(body) if framing == "length" else framed
        await conversation.send(head + framed + b"\r\n\r\n")
        for start in range(0, len(body), MIB):
            if start == 32 * MIB:
                await first_byte_seen.wait()
            await send(body[start : start + MIB])
        if framing == "chunked":
            await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post("/v1/embeddings", '{"model":"m","input":"hi"}'))
    head = await client.head()
    assert head.startswith(b"HTTP/1.1 200 ")
    received, size = hashlib.sha256(), 0
    while size < len(body):
        if framing == "chunked":
            piece = await client.chunk()
        else:
            piece = await asyncio.wait_for(client.reader.read(MIB), 10)
        first_byte_seen.set()
        assert piece
        received.update(piece)
        size += len(piece)
    assert (size, received.digest()) == (len(body), hashlib.sha256(body).digest())
    assert b"content-length" not in head.lower() or framing == "length"


async def test_b159_many_huge_answers_cost_bounded_memory(replicas, processes, raw):
    """20 answers of 64 MiB at once, read slowly: the gateway holds 2 MiB for each at most.

    Scaled: 8 MiB each, and every client stops reading half way until memory has been looked at.
    """
    body = embeddings(8 * MIB)

    async def script(conversation):
        await conversation.answer(body)

    [replica] = await replicas(script)
    gateway = await processes({"models": [{"name": "m", "replicas": [{"url": replica.url}]}]})
    before = gateway.forget_peak()
    clients = [await raw(gateway, receive_buffer=65536) for _ in range(20)]
    for client in clients:
        await client.send(post("/v1/embeddings", '{"model":"m","input":"hi"}'))
        await client.head()
    await until(lambda: len(replica.received) == 20)
    totals = await asyncio.gather(*[_read(client, len(body)) for client in clients])
    assert totals == [hashlib.sha256(body).hexdigest()] * 20
    assert gateway.peak_bytes() - before < 20 * 2 * MIB


async def _read(client, size):
    digest = hashlib.sha256()
    left = size
    while left:
        piece = await asyncio.wait_for(client.reader.read(65536), 20)
        assert piece, f"{left} bytes are missing"
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest()


@pytest.mark.parametrize("how", ["rst_in_length", "fin_in_length", "cut_chunk", "bad_chunk"])
async def test_b158_half_an_answer_never_looks_like_a_whole_one(replicas, gateways, raw, how):
    """A 200 whose body dies breaks the client's connection, so that the length error shows.

    Log and metrics name both: the status 200 that the client saw, and that it was cut.
    """
    half = b'{"id":"x","choices":["' + b"x" * 478

    async def script(conversation):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        if how.endswith("in_length"):
            await conversation.send(head + b"content-length: 1000\r\n\r\n" + half)
        else:
            await conversation.send(head + b"transfer-encoding: chunked\r\n\r\n")
            await conversation.chunk(half)
            broken = b"3e8\r\n[1,2" if how == "cut_chunk" else b"zz\r\n[1,2"
            await conversation.send(broken)
        if how == "rst_in_length":
            conversation.reset()
        else:
            conversation.writer.close()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, REQUEST))
    answer = await client.answer()
    if answer.status == 200:
        assert not answer.whole, "a well-framed short 200"
        assert answer.body.startswith(half[: len(answer.body)])
    else:
        assert (answer.status, answer.json()["error"]["reason"]) == (502, "stream_broken")
    assert await client.rest() == b""
    [line] = await until(gateway.requests)
    assert line["error"] == "stream_broken"
    assert line["status"] == answer.status
    failures = 'warmroute_request_failures_total{model="default",reason="stream_broken"}'
    assert await gateway.metric(failures) == 1
    status = f'warmroute_requests_total{{model="default",path="{CHAT}",status="{answer.status}"}}'
    assert await gateway.metric(status) == 1
