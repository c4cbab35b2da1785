"""Area B: bodies of requests cross the gateway byte for byte, whatever their framing and size."""

import asyncio
import gzip
import json
import time
import zlib

import pytest

from gateway.config.load import config_from_flags
from tests.support.clients import post
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024


async def answers(conversation):
    await conversation.answer(b'{"id":"x","choices":[]}')


BODIES = [
    (
        '{"seed":18446744073709551615,"temperature":1.0,"top_p":1e-7,"x_vendor":{"b":1,"a":2},'
        '"model":"m","model":"m","messages":[{"role":"user","content":"hi"}]}'
    ),
    '{"model":"m","x":-0.0,"y":1E400,"z":0.10,"messages":[{"role":"user","content":"hi"}]}',
    ' {\t"messages" :[{"content":"hi","role":"user"}],\r\n"model":"\\u006d"} \n',
    '{"model":"m","messages":[{"role":"user","content":"\\ud83d\\ude00 \\/ 😀 \\u00e9 é"}]}',
    '{"model":"m","a":NaN,"b":-Infinity,"messages":[{"role":"user","content":"\\ud800"}]}',
    '{"model":"m","messages":[{"role":"user","content":"hi"}],"":[[],{},null,true,1e0]}',
]


async def test_b015_a_body_reaches_the_replica_byte_for_byte(replicas, gateways, raw):
    """Big integers, number forms, duplicate keys and unknown fields are not ours to rewrite."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for body in BODIES:
        await client.send(post(CHAT, body))
        assert (await client.answer()).status == 200, body
    assert [request.body for request in replica.received] == [body.encode() for body in BODIES]


PLAIN = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


PACKED = [
    ("gzip", gzip.compress(PLAIN, mtime=0)),
    ("GZIP", gzip.compress(PLAIN, mtime=0)),
    ("x-gzip", gzip.compress(PLAIN, mtime=0)),
    ("deflate", zlib.compress(PLAIN)),
    ("identity", PLAIN),
]


async def test_b018b_a_compressed_body_is_served_decoded(replicas, gateways, raw):
    """What is forwarded is the decoded body, with its own length and no Content-Encoding."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for encoding, body in PACKED:
        await client.send(post(CHAT, body, f"content-encoding: {encoding}"))
        assert (await client.answer()).status == 200, encoding
        request = replica.received[-1]
        assert request.body == PLAIN
        assert request.header(b"content-length") == b"%d" % len(PLAIN)
        assert request.header(b"content-encoding") in (None, b"identity")
    assert len(replica.received) == len(PACKED)


NOT_AS_SAID = [
    ("gzip", PLAIN, 400),
    ("deflate", PLAIN, 400),
    ("gzip", b"", 400),
    ("gzip", gzip.compress(PLAIN, mtime=0)[:-9], 400),
    ("gzip", gzip.compress(PLAIN, mtime=0)[:-4] + b"\0\0\0\0", 400),
    ("gzip", gzip.compress(b"not JSON", mtime=0), 400),
    ("br", PLAIN, 415),
    ("zstd", PLAIN, 415),
    ("gzip, gzip", gzip.compress(gzip.compress(PLAIN, mtime=0), mtime=0), 415),
]


async def test_b018a_a_body_that_is_not_what_it_says_is_refused(replicas, gateways, raw):
    """Plain JSON under `Content-Encoding: gzip`, cut data, unknown encodings: 400 or 415."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for encoding, body, status in NOT_AS_SAID:
        await client.send(post(CHAT, body, f"content-encoding: {encoding}"))
        answer = await client.answer()
        assert answer.status == status, (encoding, body)
        assert answer.json()["error"]["code"] == status
    assert replica.received == []


def bomb(num_bytes):
    """Return a gzip stream (without its end) that unpacks to `num_bytes` zeros, at once."""
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (num_bytes // MIB - 1)


@pytest.mark.alone  # measures time and memory
async def test_b018c_a_gzip_bomb_is_a_413_in_bounded_memory(replicas, processes, raw):
    """5 MiB of gzip that unpack to 5 GiB end at limits.max_body_bytes, and memory with them."""
    [replica] = await replicas(answers)
    gateway = await processes({"models": [{"name": "m", "replicas": [{"url": replica.url}]}]})
    body = bomb(5 * 1024 * MIB)
    assert 4 * MIB < len(body) < 8 * MIB
    before = gateway.forget_peak()
    client = await raw(gateway)
    started = time.perf_counter()
    await client.send(post(CHAT, body, "content-encoding: gzip"))
    answer = await client.answer()
    assert (answer.status, answer.json()["error"]["reason"]) == (413, "body_too_large")
    assert time.perf_counter() - started < 2.0
    # The compressed body as it came, as one, and what zlib did not take of it (it is unpacked in a
    # thread, whose memory is apart), and twice the limit of 32 MiB while that is put together.
    assert gateway.peak_bytes() - before < len(body) * 2 + 2 * 32 * MIB
    assert replica.received == []


CHUNKED = b"POST %b HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
CJK = '{"model":"m","messages":[{"role":"user","content":"你好 😀"}]}'.encode()


def chunks(*pieces):
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


@pytest.mark.parametrize(
    ("framed", "body"),
    [
        (
            (
                b'10\r\n{"model":"m","me\r\n1;ext=1\r\ns\r\n28\r\n'
                b'sages":[{"role":"user","content":"hi"}]}\r\n0\r\nX-T: 1\r\n\r\n'
            ),
            PLAIN,
        ),
        (chunks(CJK[:53], CJK[53:55], CJK[55:]) + b"0\r\n\r\n", CJK),
        (chunks(*[CJK[n : n + 1] for n in range(len(CJK))]) + b"0\r\n\r\n", CJK),
        (chunks(PLAIN).replace(b"39\r\n", b"00039\r\n") + b"000\r\n\r\n", PLAIN),
    ],
    ids=["case", "cut_in_a_character", "byte_by_byte", "leading_zeros"],
)
async def test_b025_a_chunked_body_arrives_whole_and_well_framed(
    replicas, gateways, raw, framed, body
):
    """Chunks, extensions and trailers are the client hop's framing; the replica gets a length."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for _ in range(2):  # the second one shows that the first was read to its very end
        await client.send(CHUNKED + framed)
        assert (await client.answer()).status == 200
    for request in replica.received:
        assert request.body == body
        assert request.header(b"content-length") == b"%d" % len(body)
        assert request.header(b"transfer-encoding") is None
        assert request.header(b"x-t") is None
    assert len(replica.received) == 2


async def test_b025_a_chunked_body_over_the_limit_is_refused_before_its_end(
    replicas, gateways, raw
):
    """An endless chunked upload gets its 413 at limits.max_body_bytes, not at its end."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, limits={"max_body_bytes": 100_000})
    client = await raw(gateway)
    await client.send(CHUNKED)
    answering = asyncio.create_task(client.answer())
    sent = 0
    try:
        while not answering.done() and sent < 64 * MIB:
            await client.send(chunks(b"x" * 16384))
            sent += 16384
            await asyncio.sleep(0)
    except ConnectionError:
        pass  # the gateway may hang up on the rest
    answer = await answering
    assert (answer.status, answer.json()["error"]["reason"]) == (413, "body_too_large")
    assert sent < 64 * MIB
    assert replica.received == []


def body_of(num_bytes):
    empty = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}'
    padding = (b"a " * num_bytes)[: num_bytes - len(empty) + 2]
    return empty % padding


@pytest.mark.parametrize("tokenizer", [None, "loadtests/demo_model"], ids=["bytes", "tokens"])
async def test_b026_bodies_of_any_allowed_size_are_served(replicas, gateways, raw, tokenizer):
    """Bodies around 32 KiB, 128 KiB, 1 MiB and of 10 MiB pass unchanged with default limits."""
    [replica] = await replicas(answers)
    gateway = await gateways(config_from_flags([replica.url], tokenizer))
    client = await raw(gateway)
    for size in (32768, 32769, 131072, 131073, 1048577, 10485760):
        body = body_of(size)
        assert len(body) == size
        await client.send(post(CHAT, body))
        assert (await client.answer()).status == 200
        assert replica.received.pop().body == body


@pytest.mark.alone  # measures time
async def test_b026_a_10_mib_prompt_does_not_stall_health(replicas, gateways, raw):
    """While 10 MiB are read, rendered, tokenized and routed, /health answers within 0.5 s."""
    [replica] = await replicas(answers)
    gateway = await gateways(config_from_flags([replica.url], "loadtests/demo_model"))
    data = post(CHAT, body_of(10 * MIB))
    client = await raw(gateway)
    started = time.perf_counter()
    answering = asyncio.create_task(_exchange(client, data))
    took_s = []
    while not answering.done():
        asked = time.perf_counter()
        assert (await gateway.client.get("/health")).status_code == 200
        took_s.append(time.perf_counter() - asked)
    assert (await answering).status == 200
    assert time.perf_counter() - started < 5.0
    assert max(took_s) < 0.5, took_s
    await until(gateway.requests)
    json.dumps(gateway.requests())


async def _exchange(client, data):
    await client.send(data)
    return await client.answer()
