"""The relay: bytes pass unchanged, events as they come, and the books balance after any ending."""

import asyncio
import json
import socket
import struct

import pytest

from gateway.config.load import config_from_flags
from tests.support.replicas import until

EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":32,"completion_tokens":1,'
    b'"prompt_tokens_details":{"cached_tokens":16}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
# 200 clients, gateway and replicas in one loop: a second of a core of their own.
BURST_S = 60.0


async def answers(conversation):
    await conversation.answer(b'{"id":"x","choices":[]}')


async def streams(conversation):
    await conversation.start_stream()
    for event in (EVENT, EVENT, USAGE, DONE):
        await conversation.chunk(event)
    await conversation.end()


async def test_the_clients_bytes_reach_the_replica_unchanged(replicas, gateways):
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    # Duplicate keys, number forms, unknown fields, escapes, white space: none of our business.
    body = (
        b'{ "model":"m","x":1,"x":2.50,"y":1e400, "messages" : [{"role":"user",'
        b'"content":"\\u00e9 \\ud83d\\ude00 \xc3\xa9"}]\n}'
    )
    headers = [("x-dup", "1"), ("x-dup", "2"), ("authorization", "Bearer sk-1")]
    answer = await gateway.client.post(
        "/v1/chat/completions?a=%20b&c", content=body, headers=headers
    )
    assert (answer.status_code, answer.json()) == (200, {"id": "x", "choices": []})
    [received] = replica.received
    assert received.body == body
    assert received.line == b"POST /v1/chat/completions?a=%20b&c HTTP/1.1"
    assert [v for k, v in received.headers if k == b"x-dup"] == [b"1", b"2"]
    assert received.header(b"authorization") == b"Bearer sk-1"
    assert received.header(b"host") == replica.name.encode()
    assert received.header(b"x-forwarded-for") == b"127.0.0.1"


async def test_hop_by_hop_headers_stay_on_their_hop(replicas, gateways, chat):
    async def script(conversation):
        extra = b"connection: x-private\r\nx-private: 1\r\nkeep-alive: timeout=5\r\nx-kept: 2\r\n"
        await conversation.answer(b"{}", extra=extra)

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    answer = await gateway.client.post(
        "/v1/chat/completions",
        json=chat(),
        headers={"connection": "keep-alive, x-hop", "x-hop": "1", "te": "trailers", "x-end": "1"},
    )
    received = {name for name, _ in replica.received[0].headers}
    assert not received & {b"x-hop", b"te", b"connection"}
    assert b"x-end" in received
    assert "x-private" not in answer.headers
    assert "keep-alive" not in answer.headers
    assert answer.headers["x-kept"] == "2"


async def test_every_event_reaches_the_client_as_it_comes(replicas, gateways, chat):
    gates = [asyncio.Event() for _ in range(3)]

    async def script(conversation):
        await conversation.start_stream()
        for gate in gates:
            await gate.wait()
            await conversation.chunk(EVENT)
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    request = gateway.client.stream("POST", "/v1/chat/completions", json=chat(stream=True))
    opened = asyncio.create_task(request.__aenter__())
    gates[0].set()
    response = await opened
    pieces = response.aiter_raw()
    assert await anext(pieces) == EVENT
    gates[1].set()
    assert await anext(pieces) == EVENT
    gates[2].set()
    assert [piece async for piece in pieces] == [EVENT]
    await request.__aexit__(None, None, None)


async def test_the_decision_is_told_in_headers_log_and_metrics(replicas, gateways, chat):
    [replica] = await replicas(streams)
    gateway = await gateways(replica)
    answer = await gateway.client.post("/v1/chat/completions", json=chat(stream=True))
    assert answer.content == EVENT + EVENT + USAGE + DONE
    told = {k: v for k, v in answer.headers.items() if k.startswith("x-warmroute-")}
    assert told == {
        "x-warmroute-replica": replica.name,
        "x-warmroute-policy": "consistent_hash",  # no tokenizer is configured
        "x-warmroute-reason": "only",
        "x-warmroute-tier": "none",
        "x-warmroute-matched-tokens": "0",
    }
    [line] = await until(gateway.requests)
    assert line["replica"] == replica.name
    assert (line["rung"], line["problem"]) == ("hashed", "no_tokenizer")
    assert (line["status"], line["prompt_tokens"], line["cached_tokens"]) == (200, 32, 16)
    assert "hello" not in json.dumps(line)
    cached = f'warmroute_actual_cached_tokens_total{{replica="{replica.name}",rung="hashed"}}'
    assert await gateway.metric(cached) == 16


async def test_decision_headers_can_be_switched_off(replicas, gateways, chat):
    [replica] = await replicas(answers)
    gateway = await gateways(replica, decision_headers=False)
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert not [name for name in answer.headers if name.startswith("x-warmroute")]


async def test_an_error_of_the_replica_reaches_the_client_as_itself(replicas, gateways, chat):
    async def script(conversation):
        await conversation.answer(b'{"error":{"message":"too long"}}', status=b"400 Bad Request")

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    answer = await gateway.client.post("/v1/chat/completions", json=chat(stream=True))
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": "too long"}})
    assert len(replica.received) == 1


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_client_that_leaves_takes_the_replicas_request_with_it(
    replicas, gateways, chat, how
):
    left = asyncio.Event()

    async def script(conversation):
        await conversation.start_stream()
        await conversation.chunk(EVENT)
        await conversation.client_left()
        left.set()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    reader, writer = await open_request(gateway, chat(stream=True))
    await reader.readuntil(EVENT)
    assert await gateway.in_flight() == 1
    if how == "rst":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
    async with asyncio.timeout(1.0):  # the promise: within a second
        await left.wait()
    [line] = await until(gateway.requests)
    assert line["status"] == 499
    assert await gateway.in_flight() == 0
    assert await gateway.states() == ["ready"], "the client's leaving is not the replica's fault"


async def test_a_client_that_leaves_during_prefill(replicas, gateways, chat):
    left = asyncio.Event()

    async def script(conversation):
        await conversation.client_left()
        left.set()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    _, writer = await open_request(gateway, chat())
    await until(lambda: replica.received)
    writer.close()
    async with asyncio.timeout(1.0):
        await left.wait()
    assert await until(gateway.requests)
    assert await gateway.in_flight() == 0


async def test_a_stream_that_breaks_ends_with_an_error_event(replicas, gateways, chat):
    async def script(conversation):
        await conversation.start_stream()
        await conversation.chunk(EVENT)
        await conversation.chunk(b'data: {"half')
        conversation.reset()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    answer = await gateway.client.post("/v1/chat/completions", json=chat(stream=True))
    assert answer.status_code == 200
    *events, last = answer.content.removesuffix(b"\n\n").split(b"\n\n")
    assert events == [EVENT.strip(), b'data: {"half']
    assert json.loads(last.removeprefix(b"data: "))["error"]["reason"] == "stream_broken"
    assert b"[DONE]" not in answer.content
    [line] = await until(gateway.requests)
    assert (line["status"], line["error"]) == (200, "stream_broken")


async def test_a_body_that_breaks_is_never_a_well_framed_short_one(replicas, gateways, chat):
    async def script(conversation):
        await conversation.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + b"x" * 500)
        conversation.reset()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    reader, writer = await open_request(gateway, chat())
    raw = await reader.read()
    writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 200"):
        assert b"content-length: 1000" in head
        assert body == b"x" * 500
    else:
        assert head.startswith(b"HTTP/1.1 502")


@pytest.mark.parametrize(
    ("before", "status", "reason"),
    [
        (b"", 502, "stream_broken"),
        (b"HTTP/1.1 200 OK\r\n", 502, "stream_broken"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", 502, "stream_broken"),
        (b"ICY 200 OK\r\n\r\n", 502, "stream_broken"),
    ],
)
async def test_a_replica_that_closes_before_its_answer_begins(
    replicas, gateways, chat, before, status, reason
):
    async def script(conversation):
        await conversation.send(before)
        conversation.writer.close()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert (answer.status_code, answer.json()["error"]["reason"]) == (status, reason)
    assert len(replica.received) == 1, "it may have run: not sent twice"
    assert await gateway.in_flight() == 0


async def test_a_kept_connection_that_closed_meanwhile_gets_one_fresh_try(replicas, gateways, chat):
    async def script(conversation):
        if len(replica.received) == 2:  # the second request meets a close on the wire
            conversation.writer.close()
            return
        await conversation.answer(b"{}")

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    for _ in range(2):
        answer = await gateway.client.post("/v1/chat/completions", json=chat())
        assert answer.status_code == 200
    assert len(replica.received) == 3


async def test_a_replica_that_says_nothing_is_a_504(replicas, gateways, chat):
    async def script(conversation):
        await conversation.client_left()

    [replica] = await replicas(script)
    gateway = await gateways(replica, timeouts={"first_byte_s": 0.1})
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert (answer.status_code, answer.json()["error"]["reason"]) == (504, "replica_timeout")
    assert await gateway.in_flight() == 0


async def test_a_stream_that_pauses_too_long_ends_with_an_error_event(replicas, gateways, chat):
    async def script(conversation):
        await conversation.start_stream()
        await conversation.chunk(EVENT)
        await conversation.client_left()

    [replica] = await replicas(script)
    gateway = await gateways(replica, timeouts={"idle_s": 0.1})
    answer = await gateway.client.post("/v1/chat/completions", json=chat(stream=True))
    assert answer.content.startswith(EVENT)
    assert b"replica_timeout" in answer.content


async def test_a_dead_replica_costs_no_request(replicas, gateways, chat):
    alive, dead = await replicas(answers, answers)
    gateway = await gateways(alive, dead, health={"interval_s": 30.0})
    await dead.stop()
    for number in range(20):
        answer = await gateway.client.post("/v1/chat/completions", json=chat(f"q{number}"))
        assert (answer.status_code, answer.headers["x-warmroute-replica"]) == (200, alive.name)
    assert (await gateway.replica(dead.name))["state"] == "ejected"
    retries = [line["retries"] for line in gateway.requests() if "retries" in line]
    assert retries == [[f"{dead.name}:replica_unreachable"]], "one request noticed, no other tried"
    assert await gateway.in_flight() == 0


async def test_no_replica_left_is_a_quick_503(replicas, gateways, chat):
    [replica] = await replicas(answers)
    gateway = await gateways(replica, health={"interval_s": 30.0})
    await replica.stop()
    for _ in range(2):  # the first one finds out, the second one knows
        async with asyncio.timeout(1.0):
            answer = await gateway.client.post("/v1/chat/completions", json=chat())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["reason"] == "no_eligible_replica"


async def test_a_replica_that_comes_back_is_used_again(replicas, gateways, chat):
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    replica.healthy = False
    await until(lambda: _state_is(gateway, "ejected"))
    replica.healthy = True
    await until(lambda: _state_is(gateway, "ready"))
    assert (await gateway.client.post("/v1/chat/completions", json=chat())).status_code == 200


async def _state_is(gateway, state):
    return await gateway.states() == [state]


async def test_a_slow_client_slows_the_replica_and_costs_bounded_memory(replicas, gateways, chat):
    sent = 0
    piece = b"x" * 65536

    async def script(conversation):
        nonlocal sent
        await conversation.start_stream()
        while True:
            await conversation.chunk(piece)
            sent += len(piece)

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    _, writer = await open_request(gateway, chat(stream=True), receive_buffer=4096)
    await until(lambda: sent, "the replica's first bytes")
    seen = -1
    while sent != seen:  # until the replica is stuck in its send
        seen = sent
        await asyncio.sleep(0.1)
    assert sent < 16 * 1024 * 1024
    writer.close()
    assert await until(gateway.requests)
    assert await gateway.in_flight() == 0


@pytest.mark.parametrize("tokenizer", [None, "loadtests/demo_model"], ids=["hashed", "ids"])
async def test_200_requests_at_once_spread_as_if_they_had_come_one_by_one(
    replicas, gateways, chat, tokenizer
):
    release = asyncio.Event()

    async def script(conversation):
        await release.wait()
        await conversation.answer(b"{}")

    fleet = await replicas(*[script] * 4)
    gateway = await gateways(config_from_flags([replica.url for replica in fleet], tokenizer))
    burst = [
        asyncio.create_task(
            gateway.client.post("/v1/chat/completions", json=chat("same"), timeout=BURST_S)
        )
        for _ in range(200)
    ]
    await until(
        lambda: sum(len(replica.received) for replica in fleet) == 200, "all requests", BURST_S
    )
    counts = [len(replica.received) for replica in fleet]
    assert max(counts) <= 1.5 * 50, counts  # the bound; one by one gives exactly the same
    release.set()
    assert {answer.status_code for answer in await asyncio.gather(*burst)} == {200}
    assert await gateway.in_flight() == 0


async def open_request(gateway, body, receive_buffer=None):
    """Send a chat over a raw connection, to be left in any way."""
    host, port = gateway.client.base_url.host, gateway.client.base_url.port
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
    return reader, writer
