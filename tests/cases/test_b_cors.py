"""Area B: web pages of other origins may call where the configuration says so."""

import hashlib

import pytest

from tests.support.clients import post

CHAT = "/v1/chat/completions"
BODY = '{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = '{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
ORIGIN = "https://app.example"
KEY = "sk-case"
SHA256 = hashlib.sha256(KEY.encode()).hexdigest()
ON = {"origins": [ORIGIN]}
PREFLIGHT = (
    f"OPTIONS {CHAT} HTTP/1.1\r\nHost: gw\r\nOrigin: {ORIGIN}\r\n"
    "Access-Control-Request-Method: POST\r\n"
    "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n\r\n"
)


async def answers(conversation):
    await conversation.answer(b"{}")


async def streams(conversation):
    await conversation.start_stream()
    await conversation.chunk(b"data: [DONE]\n\n")
    await conversation.end()


def says(status):
    async def script(conversation):
        await conversation.answer(b'{"error":{}}', status=status)

    return script


def tokens(value):
    return {token.strip().lower() for token in value.decode().split(",")}


async def test_b028_a_preflight_is_answered_without_a_key_and_not_counted(replicas, gateways, raw):
    """With CORS on, a preflight gets 204 and what it asked for, and is no inference."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, cors=ON, auth={"keys": [{"name": "a", "sha256": SHA256}]})
    client = await raw(gateway)
    await client.send(PREFLIGHT.encode())
    answer = await client.answer()
    assert answer.status == 204
    assert answer.all(b"access-control-allow-origin") == [ORIGIN.encode()]
    assert b"POST" in answer.header(b"access-control-allow-methods")
    allowed = tokens(answer.header(b"access-control-allow-headers"))
    assert {"authorization", "content-type", "x-stainless-os"} <= allowed
    assert b"origin" in b", ".join(answer.all(b"vary")).lower()
    await client.send(post(CHAT, BODY, f"authorization: Bearer {KEY}"))  # the connection goes on
    assert (await client.answer()).status == 200
    assert len(replica.received) == 1
    page = (await gateway.admin.get("/metrics")).text
    counted = [x for x in page.splitlines() if x.startswith("warmroute_requests_total{")]
    assert len(counted) == 1, "the POST only"
    assert len(gateway.requests()) == 1


@pytest.mark.parametrize("origins", [[ORIGIN], ["*"]], ids=["named", "any"])
async def test_b028_every_answer_can_be_read_by_the_page(replicas, gateways, raw, origins):
    """Streams, whole answers, and errors of the replica or ours carry Access-Control-Allow-Origin.

    Without it a page sees a bare network error instead of a 401, 404, 429 or 503. Where any origin
    may call, the one that does is named all the same.
    """
    key = {"name": "a", "sha256": SHA256, "requests_per_minute": 60}  # bursts of 10
    [replica] = await replicas(answers)
    gateway = await gateways(replica, cors={"origins": origins}, auth={"keys": [key]})
    mine = (f"origin: {ORIGIN}", f"authorization: Bearer {KEY}")
    client = await raw(gateway)

    async def check(data, status):
        await client.send(data)
        answer = await client.answer()
        assert answer.status == status, answer
        assert answer.all(b"access-control-allow-origin") == [ORIGIN.encode()]
        exposed = tokens(answer.header(b"access-control-expose-headers"))
        assert {"x-request-id", "x-warmroute-replica"} <= exposed
        return answer

    await check(post(CHAT, BODY, *mine), 200)
    replica.script = streams
    answer = await check(post(CHAT, STREAM, *mine), 200)
    assert answer.body == b"data: [DONE]\n\n"
    for status in (b"400 Bad Request", b"429 Too Many Requests", b"500 Internal Server Error"):
        replica.script = says(status)
        await check(post(CHAT, BODY, *mine), int(status[:3]))
    await check(post(CHAT, "{", *mine), 400)
    await check(post(CHAT, BODY, mine[0]), 401)
    await check(post("/nowhere", BODY, *mine), 404)
    await check(_get(CHAT, *mine), 405)
    replica.script = answers
    for _ in range(20):
        await client.send(post(CHAT, BODY, *mine))
        answer = await client.answer()
        assert answer.all(b"access-control-allow-origin") == [ORIGIN.encode()]
        if answer.status == 429:
            break
    assert (answer.status, answer.json()["error"]["reason"]) == (429, "rate_limited")
    assert answer.header(b"retry-after") is not None


def _get(path, *headers):
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: gw", *headers]).encode() + b"\r\n\r\n"


async def test_b028_a_gateway_without_replicas_can_be_read_too(replicas, gateways, raw):
    """Our own 503 carries Access-Control-Allow-Origin."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, cors=ON, health={"interval_s": 30.0})
    await replica.stop()
    client = await raw(gateway)
    await client.send(post(CHAT, BODY, f"origin: {ORIGIN}"))
    answer = await client.answer()
    assert answer.status == 503
    assert answer.all(b"access-control-allow-origin") == [ORIGIN.encode()]


@pytest.mark.parametrize("origin", ["https://evil.example", "https://app.example.evil", "null"])
async def test_b028_an_origin_that_is_not_listed_gets_nothing(replicas, gateways, raw, origin):
    """Other origins get no Access-Control headers, for a preflight or a POST."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, cors=ON)
    client = await raw(gateway)
    for data in (PREFLIGHT.replace(ORIGIN, origin).encode(), post(CHAT, BODY, f"origin: {origin}")):
        await client.send(data)
        answer = await client.answer()
        assert answer.all(b"access-control-allow-origin") == []


async def test_b028_with_cors_off_a_preflight_is_a_wrong_method(replicas, gateways, raw):
    """Off: 405 with Allow for a preflight, and no Access-Control headers anywhere."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(PREFLIGHT.encode())
    refused = await client.answer()
    assert (refused.status, refused.header(b"allow")) == (405, b"POST")
    await client.send(post(CHAT, BODY, f"origin: {ORIGIN}"))
    served = await client.answer()
    assert served.status == 200
    names = {name for answer in (refused, served) for name, _ in answer.headers}
    assert not [name for name in names if name.startswith(b"access-control")]
