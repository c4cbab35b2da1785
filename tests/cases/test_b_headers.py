"""Area B: what of a request's head crosses the gateway, and what ends there."""

import asyncio

import pytest

from tests.support.clients import post
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
BODY = '{"model":"m","messages":[{"role":"user","content":"hi"}]}'


async def answers(conversation):
    await conversation.answer(b"{}")


HOP_BY_HOP = [
    "Connection: close, X-Secret-Hop",
    "X-Secret-Hop: 1",
    "Keep-Alive: timeout=99",
    "Proxy-Authorization: Basic Zm9v",
    "TE: trailers",
    "Upgrade: h2c",
]


@pytest.mark.parametrize(
    "headers",
    [
        HOP_BY_HOP,
        ["Connection: X-Secret-Hop", "connection:\tte , ,X-OTHER", *HOP_BY_HOP[1:], "x-other: 2"],
        ["Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAM", *HOP_BY_HOP[2:]],
        ["Proxy-Connection: keep-alive", "Trailer: x-t", *HOP_BY_HOP[2:]],
    ],
    ids=["case", "two_lines", "h2c", "proxy"],
)
async def test_b019_hop_by_hop_headers_end_at_the_gateway(replicas, gateways, raw, headers):
    """Headers of the client's hop, those named by Connection and the client's Host stay here."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, BODY, *headers, "X-End-To-End: 1"))
    assert (await client.answer()).status == 200
    [request] = replica.received
    names = {name for name, _ in request.headers}
    assert not names & {
        b"connection", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings", b"x-secret-hop",
    }  # fmt: skip
    assert (b"x-other" in names) is False
    assert request.header(b"x-end-to-end") == b"1"
    hosts = [value for name, value in request.headers if name == b"host"]
    assert hosts == [replica.name.encode()]
    assert [v for k, v in request.headers if k == b"content-length"] == [b"57"]


async def test_b019_hop_by_hop_headers_of_the_answer_end_at_the_gateway(replicas, gateways, raw):
    """Connection, what it names, Keep-Alive, Trailer and the replica's chunking stay on its hop."""

    async def script(conversation):
        await conversation.send(
            b"HTTP/1.1 200 OK\r\nConnection: close, X-Up\r\nKeep-Alive: timeout=3\r\nX-Up: 1\r\n"
            b"Transfer-Encoding: chunked\r\nTrailer: X-T\r\nX-Kept: 1\r\n"
            b"Content-Type: application/json\r\n\r\n2\r\n{}\r\n0\r\nX-T: 1\r\n\r\n"
        )
        conversation.writer.close()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for _ in range(2):  # the replica's close is not the client's
        await client.send(post(CHAT, BODY))
        answer = await client.answer()
        assert (answer.status, answer.body, answer.header(b"x-kept")) == (200, b"{}", b"1")
        assert len(answer.all(b"transfer-encoding") + answer.all(b"content-length")) == 1
        names = {name for name, _ in answer.headers}
        assert not names & {b"x-up", b"keep-alive", b"connection", b"trailer", b"x-t"}


async def test_b020_every_forwarded_for_value_is_kept_in_order(replicas, gateways, raw):
    """Several X-Forwarded-For lines make one chain, with the peer at its end."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    chain = ["X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 2.2.2.2, 3.3.3.3"]
    await client.send(post(CHAT, BODY, *chain, "X-Request-Id: abc"))
    answer = await client.answer()
    [request] = replica.received
    values = [value for name, value in request.headers if name == b"x-forwarded-for"]
    assert b", ".join(values) == b"1.1.1.1, 2.2.2.2, 3.3.3.3, 127.0.0.1"
    assert request.header(b"x-forwarded-proto") == b"http"
    assert request.header(b"x-request-id") == b"abc"
    assert answer.all(b"x-request-id") == [b"abc"]
    [line] = await until(gateway.requests)
    assert line["request_id"] == "abc"


REQUEST_IDS = [
    ("abc%0d%0aevent: forged", False),
    ("abc%0d%0aforged", True),
    ("x" * 128, True),
    ("x" * 129, False),
    ("x" * 10240, False),
    ("a b", False),
    ("caf\xe9", False),
    ("", False),
    ('{"a":"b\\n"}', True),
]


async def test_b020_a_request_id_is_echoed_or_replaced_and_never_splits_a_line(
    replicas, gateways, raw
):
    """At most 128 visible ASCII characters are taken as they are; any other id is replaced."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for number, (sent, kept) in enumerate(REQUEST_IDS, 1):
        await client.send(post(CHAT, BODY, f"X-Request-Id: {sent}"))
        answer = await client.answer()
        assert answer.status == 200
        [told] = answer.all(b"x-request-id")
        assert (told.decode("latin-1") == sent) is kept, sent
        assert 0 < len(told) <= 128
        assert replica.received[-1].header(b"x-request-id") == told
        await until(lambda number=number: len(gateway.requests()) == number)
        assert gateway.requests()[-1]["request_id"] == told.decode()


SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: gw\r\n\r\n"


def head(*headers):
    lines = [f"POST {CHAT} HTTP/1.1", "Host: gw", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


DOUBTFUL = [
    head("Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + SMUGGLED,
    head("Transfer-Encoding: chunked", "Content-Length: 4") + b"0\r\n\r\n" + SMUGGLED,
    head("Content-Length: 57", "Content-Length: 4") + BODY.encode() + SMUGGLED,
    head("Content-Length: 57, 4") + BODY.encode() + SMUGGLED,
    head("Content-Length: +57") + BODY.encode() + SMUGGLED,
    head("Content-Length: 0x39") + BODY.encode() + SMUGGLED,
    head("Content-Length: -1") + SMUGGLED,
    head("Transfer-Encoding: xchunked") + b"0\r\n\r\n" + SMUGGLED,
    head("Transfer-Encoding: chunked, identity") + b"0\r\n\r\n" + SMUGGLED,
    head("Transfer-Encoding: \x0bchunked") + b"0\r\n\r\n" + SMUGGLED,
    head("Transfer-Encoding : chunked") + b"0\r\n\r\n" + SMUGGLED,
    head("Transfer-Encoding: chunked", "Transfer-Encoding: identity") + b"0\r\n\r\n" + SMUGGLED,
    head("X: 1", " Transfer-Encoding: chunked", "Content-Length: 57") + BODY.encode(),
    head("Transfer-Encoding: chunked") + b"+4\r\n{}\r\n\r\n0\r\n\r\n" + SMUGGLED,
    head("Transfer-Encoding: chunked") + b"5\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
    head("Transfer-Encoding: chunked") + b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
]


async def test_b021_a_request_of_doubtful_length_is_refused_and_ends_its_connection(
    replicas, gateways, raw
):
    """Content-Length with Transfer-Encoding, and every other doubt about the end: 400 and close."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    for data in DOUBTFUL:
        client = await raw(gateway)
        await client.send(data)
        answered = await client.rest()
        assert answered.startswith(b"HTTP/1.1 400 "), data
        assert answered.count(b"HTTP/1.1 ") == 1, "nothing after it was taken for a request"
    assert replica.received == []
    assert (await gateway.client.get("/livez")).status_code == 200


async def test_b021_a_second_answer_is_not_taken_for_the_next_requests(replicas, gateways, raw):
    """A replica that sends one answer too many loses its connection, and nobody else gets it."""

    async def script(conversation):
        body = b"%d" % len(replica.received)
        first = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + body
        surplus = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
        await conversation.send(first + surplus[:-3])
        await conversation.send(surplus[-3:])

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for number in range(1, 6):
        await client.send(post(CHAT, BODY))
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"%d" % number)


@pytest.mark.parametrize("headers", [["Content-Length: 57"] * 2], ids=["same_length_twice"])
async def test_b021_at_most_one_request_reaches_the_replicas(replicas, gateways, raw, headers):
    """What may be read in two ways is served once or not at all, and /admin is never asked for."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(head(*headers, "Connection: close") + BODY.encode() + SMUGGLED)
    answered = await client.rest()
    assert answered.count(b"HTTP/1.1 ") == 1
    assert len(replica.received) <= 1
    assert not [p for p in replica.probes if b"admin" in p.line]
    await asyncio.sleep(0)
