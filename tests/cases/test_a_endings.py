"""Area A: a client that leaves, or reads slowly, must be felt at the replica."""

import asyncio
import contextlib
import hashlib

import pytest

from tests.support.clients import post
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
BODY = (
    '{"model":"m","stream":true,"max_tokens":4096,'
    '"messages":[{"role":"user","content":"count to one million"}]}'
)
EVENT = b'data: {"choices":[{"delta":{"content":"1 "}}]}\n\n'
KEY = "sk-case"
SHA256 = hashlib.sha256(KEY.encode()).hexdigest()

BARE = {"decision_headers": False, "logging": {"requests": True}}
EVERYTHING = {
    "auth": {"keys": [{"name": "team-a", "sha256": SHA256, "requests_per_minute": 6000}]},
    "isolation": {"by": "api_key", "inject_cache_salt": True},
    "cors": {"origins": ["https://app.example"]},
    "limits": {"max_in_flight": 64, "queue_requests": 8},
    "timeouts": {"heartbeat_s": 30.0, "total_s": 600.0},
    "decision_headers": True,
}
HEADERS = (f"authorization: Bearer {KEY}", "origin: https://app.example", "x-request-id: case")


class EndlessReplies:
    """Streams an event every 20 ms until the gateway leaves, and notes that it left."""

    def __init__(self, period_s=0.02):
        self.period_s = period_s
        self.left = 0

    async def __call__(self, conversation):
        gone = asyncio.create_task(conversation.client_left())
        try:
            await conversation.start_stream()
            while not gone.done():
                await conversation.chunk(EVENT)
                await asyncio.wait([gone], timeout=self.period_s)
        except ConnectionError:
            pass
        finally:
            await gone
            self.left += 1


async def leave_after_3_events(gateway, raw, replies, how, number):
    client = await raw(gateway)
    await client.send(post(CHAT, BODY, *HEADERS))
    assert (await client.head()).startswith(b"HTTP/1.1 200 ")
    received = b""
    while received.count(b"\n\n") < 3:
        received += await client.chunk()
    assert await gateway.in_flight() == 1
    client.leave(how)
    await until(lambda: replies.left == number, "the replica's end", within_s=1.0)  # the promise
    await until(lambda: len(gateway.requests()) == number, "the request's log line")


async def assert_books_say_client_left(gateway, replica, number):
    assert await gateway.in_flight() == 0
    lines = gateway.requests()
    assert [line["status"] for line in lines] == [499] * number
    assert not [line for line in lines if "error" in line], "no upstream error"
    counted = f'warmroute_requests_total{{model="default",path="{CHAT}",status="499"}}'
    assert await gateway.metric(counted) == number
    page = (await gateway.admin.get("/metrics")).text
    totals = [x for x in page.splitlines() if x.startswith("warmroute_requests_total{")]
    assert len(totals) == 1, totals
    assert (await gateway.replica(replica.name))["state"] == "ready"


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a001_a_client_that_leaves_a_stream_ends_the_replicas_work(
    replicas, gateways, raw, how
):
    """A client that leaves a stream (FIN or RST) closes it at the replica within 1 s, as a 499.

    Scaled: an event every 20 ms instead of 200 ms. Five clients leave, more than would eject a
    replica if leaving counted against it.
    """
    replies = EndlessReplies()
    [replica] = await replicas(replies)
    gateway = await gateways(replica)
    for number in range(1, 6):
        await leave_after_3_events(gateway, raw, replies, how, number)
    await assert_books_say_client_left(gateway, replica, 5)
    assert len(replica.received) == 5


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stage", ["before_headers", "between_headers_and_body"])
async def test_a001_a_client_that_leaves_during_prefill_ends_it(
    replicas, gateways, raw, how, stage
):
    """A client that leaves before the first token ends the replica's work within 1 s too."""
    left = asyncio.Event()
    waiting = asyncio.Event()

    async def script(conversation):
        if stage == "between_headers_and_body":
            await conversation.start_stream()
        waiting.set()
        await conversation.client_left()
        left.set()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, BODY))
    await waiting.wait()
    assert await gateway.in_flight() == 1
    client.leave(how)
    async with asyncio.timeout(1.0):
        await left.wait()
    await until(gateway.requests)
    await assert_books_say_client_left(gateway, replica, 1)


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("changes", [BARE, EVERYTHING], ids=["bare", "everything"])
async def test_a011_no_layer_hides_that_the_client_left(replicas, gateways, raw, how, changes):
    """Auth, isolation, CORS, admission, heartbeats, logs: the replica's work ends all the same."""
    replies = EndlessReplies()
    [replica] = await replicas(replies)
    gateway = await gateways(replica, **changes)
    await leave_after_3_events(gateway, raw, replies, how, 1)
    await assert_books_say_client_left(gateway, replica, 1)


MIB = 1024 * 1024
# Loopback sockets hold up to 4 MiB (tcp_wmem) and 6 MiB (tcp_rmem) on each of two hops.
MOST_SENT_BYTES = 24 * MIB


async def test_a012_a_slow_reader_is_pushed_back_on_and_costs_bounded_memory(
    replicas, processes, raw
):
    """A client that reads 1 KiB/s holds the replica up by TCP; the gateway grows by under 16 MiB.

    Scaled: the replica would send 2 GiB, the client reads until the replica is stuck, 2 s at least.
    """
    sent = 0
    ended = asyncio.Event()
    piece = (EVENT * (65536 // len(EVENT) + 1))[:65536]

    async def script(conversation):
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            await conversation.start_stream()
            while sent < 2048 * MIB:
                await conversation.chunk(piece)
                sent += len(piece)
        ended.set()

    [replica] = await replicas(script)
    gateway = await processes({"models": [{"name": "m", "replicas": [{"url": replica.url}]}]})
    before = gateway.forget_peak()
    client = await raw(gateway, receive_buffer=4096)
    await client.send(post(CHAT, BODY))
    assert (await client.head()).startswith(b"HTTP/1.1 200 ")
    num_reads, before_read = 0, -1
    while num_reads < 20 or sent > before_read + len(piece):
        assert sent < MOST_SENT_BYTES, "the replica is not held up"
        before_read, num_reads = sent, num_reads + 1
        await client.reader.read(102)
        await asyncio.sleep(0.1)
    assert gateway.peak_bytes() - before < 16 * MIB
    client.leave()
    async with asyncio.timeout(1.0):
        await ended.wait()
    await until(lambda: _is_idle(gateway))


async def _is_idle(gateway):
    return await gateway.in_flight() == 0
