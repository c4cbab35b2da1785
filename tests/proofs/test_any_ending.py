"""However client and replica end, over real sockets: the books balance and nothing is used up."""

import asyncio
import contextlib
import json
import socket
import struct

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.replicas import WAIT_S, until

EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
BODY = json.dumps({"model": "m", "prompt": "x" * 300, "stream": True}).encode()
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 300\r\n\r\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = CHUNKED + chunk(EVENT) * 3 + chunk(DONE) + b"0\r\n\r\n"
ANSWERS = {
    "stream": STREAM,
    "whole": WHOLE + b"x" * 300,
    "until_close": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + EVENT * 3,
    "error": b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
    "busy": b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}",
    "too_many": b"HTTP/1.1 429 Busy\r\ncontent-length: 2\r\n\r\n{}",
    "interim": b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + STREAM,
    "poison": STREAM + WHOLE + b"x" * 300,
    "close_told": STREAM.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n", 1),
    "garbage": b"\x00\x01 no http\r\n\r\n",
    "garbage_in_chunks": CHUNKED + chunk(EVENT) + b"ZZ\r\n\r\n",
    "long_headers": b"HTTP/1.1 200 OK\r\n" + b"x-many: value\r\n" * 10_000,
    "unfinished_header": b"HTTP/1.1 200 OK\r\nx-one: " + b"v" * 200_000,
    "large": CHUNKED + chunk(b"x" * 400_000) + b"0\r\n\r\n",
}
# What the replica does after the bytes it sends; `keep` waits for the next request.
REPLICA_ENDS = ["keep", "fin", "rst", "half_close", "silence"]

CLIENT_ENDS = ["read", "fin", "rst", "half_close"]
REQUESTS = ["whole", "cut", "bad_chunks", "bad_second", "two", "http_1_0", "slow_reader"]

replica_plans = st.tuples(
    st.sampled_from(sorted(ANSWERS)),
    st.one_of(st.none(), st.integers(0, 330)),  # bytes sent of it; None for all
    st.sampled_from(REPLICA_ENDS),
)
client_plans = st.tuples(
    st.sampled_from(REQUESTS),
    st.integers(0, 500),  # bytes that it reads before it ends, or sends where the request is cut
    st.sampled_from(CLIENT_ENDS),
)
endings = st.tuples(st.lists(replica_plans, min_size=1, max_size=2), client_plans)


async def play_replica(conversation, plan):
    """Send an answer or a part of it, and end so."""
    name, cut, end = plan
    if (
        end == "silence"
        and name != "until_close"
        and len(ANSWERS[name][:cut]) == len(ANSWERS[name])
    ):
        end = "keep"  # else the next request on this connection would be the one that waits
    with contextlib.suppress(ConnectionError):
        await conversation.send(ANSWERS[name][:cut])
    if end in ("fin", "rst") or (name == "until_close" and end != "silence"):
        if end == "rst":
            _linger_not(conversation.writer)
        conversation.writer.transport.abort() if end == "rst" else conversation.writer.close()
    elif end == "half_close":
        conversation.writer.write_eof()
        await conversation.client_left()
    elif end == "silence":
        await conversation.client_left()


def request_bytes(kind, name, request_id):
    """Return the bytes of one client, and how many requests they hold that a replica may see."""
    version = b"1.0" if kind == "http_1_0" else b"1.1"
    head = b"POST /v1/completions HTTP/%b\r\nhost: gw\r\nx-plan: %b\r\nx-request-id: %b\r\n"
    first = head % (version, name.encode(), request_id + b"-0")
    whole = first + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    if kind == "bad_chunks":
        return first + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nZZ\r\n"
    if kind == "bad_second":
        return whole + b"\x00 no http\r\n\r\n"
    if kind == "two":
        return whole + whole.replace(request_id + b"-0", request_id + b"-1")
    return whole


async def play_client(stage, plan, name, request_id):
    """Send a request, read some of the answer, end so."""
    kind, count, end = plan
    data = request_bytes(kind, name, request_id)
    client = await stage.connect(receive_buffer=4096 if kind == "slow_reader" else None)
    with contextlib.suppress(ConnectionError):
        await client.send(data[: count + 1] if kind == "cut" else data)
        if end == "half_close":
            client.writer.write_eof()
        # An end of its own, or a fin where the test has to give up waiting for it.
        if end in ("read", "half_close") and kind not in ("cut", "bad_chunks"):
            await _read(client, kind)
        elif kind != "cut" and count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.reader.read(count)
    client.leave("rst" if end == "rst" else "fin")


async def _read(client, kind):
    """Read whole answers: every one has to end within its deadline."""
    async with asyncio.timeout(WAIT_S):
        for _ in range(2 if kind == "two" else 1):
            with contextlib.suppress(asyncio.IncompleteReadError):
                answer = await client.answer()
                if answer.whole and answer.status == 200 and answer.framing == "chunked":
                    assert answer.body.count(DONE) <= 1


def _linger_not(writer):
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def balance(stage, batch, number):
    """Play a batch of endings at once; then nothing may be left of them."""
    ids = [b"%d-%d" % (number, position) for position in range(len(batch))]
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(
            *(
                play_client(stage, client_plan, _plan(stage, replica_plans), request_id)
                for (replica_plans, client_plan), request_id in zip(batch, ids, strict=True)
            )
        )
    await stage.quiet()
    stage.book.check()
    assert await stage.gateway.in_flight() == 0
    told = stage.told()
    assert set(told.values()) <= {1}, "each request is told once"
    for request_id, (_, (kind, _, end)) in zip(ids, batch, strict=True):
        if kind in ("whole", "http_1_0", "slow_reader") and end in ("read", "half_close"):
            assert told[request_id.decode() + "-0"] == 1, (kind, end)
    await _still_serves(stage)


def _plan(stage, plans):
    left = list(plans)

    async def script(conversation):
        await play_replica(conversation, left.pop(0) if len(left) > 1 else left[0])

    return stage.new_plan(script)


async def _still_serves(stage):
    async def script(conversation):
        await conversation.answer(b"{}")

    headers = {"x-plan": stage.new_plan(script)}

    async def serves():
        answer = await stage.gateway.client.post("/v1/completions", content=BODY, headers=headers)
        return answer.status_code == 200  # on a busy machine an answer may take a stage's 0.1 s

    await until(serves, "an answer")
    await until(stage.gateway.requests)
    stage.told()


def _run(stage, max_examples, a_batch):
    num_endings = 0

    @given(st.lists(endings, min_size=a_batch // 2, max_size=a_batch))
    @settings(
        max_examples=max_examples,
        deadline=None,
        # A batch is played at once and in real time: its smaller parts need not fail alike.
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    def balances(batch):
        nonlocal num_endings
        stage.play(balance, batch, num_endings)
        num_endings += len(batch)

    balances()
    return num_endings


def test_a_few_hundred_endings_leave_nothing_behind(stage):
    assert _run(stage, max_examples=16, a_batch=32) >= 200


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ten_thousand_endings_leave_nothing_behind(stage):
    num_endings = 0
    while num_endings < 10_000:
        num_endings += _run(stage, max_examples=100, a_batch=60)


@pytest.mark.parametrize("client_end", CLIENT_ENDS)
def test_every_pair_of_ends_leaves_nothing_behind(stage, client_end):
    """All ends of the replica at every stage of an answer, for one end of the client."""
    cuts = [0, 5, len(CHUNKED) - 1, len(CHUNKED), len(CHUNKED) + 20, None]
    answers = ["stream", "whole", "until_close"]
    plans = [(name, cut, end) for name in answers for cut in cuts for end in REPLICA_ENDS]
    batch = [([plan], ("whole", 200, client_end)) for plan in plans]
    stage.play(balance, batch, CLIENT_ENDS.index(client_end))
