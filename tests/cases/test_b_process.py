"""Area B: what surrounds a gateway: its environment, and clients that mean it harm."""

import asyncio
import contextlib
import time

import pytest

from tests.support.clients import post
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
BODY = '{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = '{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'


async def answers(conversation):
    await conversation.answer(b"{}")


async def test_b050_proxies_and_netrc_of_the_environment_are_not_for_replicas(
    replicas, processes, raw, tmp_path
):
    """Proxy variables and ~/.netrc change nothing: requests and probes go direct, without a key."""
    [replica] = await replicas(answers)
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    nowhere = {
        "HTTP_PROXY": "http://127.0.0.1:1",
        "HTTPS_PROXY": "http://127.0.0.1:1",
        "ALL_PROXY": "socks5://127.0.0.1:1",
        "NO_PROXY": "10.0.0.0/8",
    }
    environ = {**nowhere, **{name.lower(): value for name, value in nowhere.items()}}
    environ |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / ".netrc")}
    models = [{"name": "m", "replicas": [{"url": replica.url}]}]
    gateway = await processes({"models": models}, environ)
    client = await raw(gateway)
    await client.send(post(CHAT, BODY))
    assert (await client.answer()).status == 200
    probed = {request.line.split()[1] for request in replica.probes}
    assert {b"/health", b"/v1/models", b"/metrics"} <= probed
    for request in (*replica.probes, *replica.received):
        assert request.header(b"authorization") is None
        assert request.header(b"host") == replica.name.encode()
        assert b"proxy" not in request.head.lower()
    assert not [line for line in gateway.lines() if line["event"] == "internal_error"]


async def trickle(client, head, piece, period_s):
    """Send a head, then a piece again and again; return what the gateway said before it closed."""
    answered = asyncio.create_task(client.rest())
    with contextlib.suppress(ConnectionError):
        await client.send(head)
        while not answered.done():
            await client.send(piece)
            await asyncio.wait([answered], timeout=period_s)
    return await answered


@pytest.mark.alone  # measures time
async def test_b051_trickling_clients_are_cut_and_others_do_not_feel_them(replicas, gateways, raw):
    """Headers or bodies that trickle in are cut by receive_s with 408; others stay as fast.

    A stream that lasts longer than receive_s is not cut. Scaled: 200 slow clients instead of
    2,000, and a deadline of 1 s instead of a minute.
    """

    async def script(conversation):
        if b'"stream":true' not in conversation.request.body:
            await conversation.answer(b"{}")
            return
        await conversation.start_stream()
        for _ in range(20):
            await conversation.chunk(EVENT)
            await asyncio.sleep(0.1)
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica, timeouts={"receive_s": 1.0})
    streaming = await raw(gateway)
    await streaming.send(post(CHAT, STREAM))
    started = time.perf_counter()
    line = f"POST {CHAT} HTTP/1.1\r\nhost: gw\r\n".encode()
    slow = []
    for _ in range(100):
        slow.append(trickle(await raw(gateway), line + b"x-slow: ", b"x", 0.1))
        head = line + b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n"
        slow.append(trickle(await raw(gateway), head, b" ", 0.2))
    cutting = asyncio.gather(*slow)
    took_s = []
    while not cutting.done():
        asked = time.perf_counter()
        assert (await gateway.client.post(CHAT, content=BODY)).status_code == 200
        took_s.append(time.perf_counter() - asked)
        await asyncio.wait([cutting], timeout=0.02)
    for answered in await cutting:
        assert answered.startswith(b"HTTP/1.1 408 ")
        assert answered.count(b"HTTP/1.1 ") == 1
    assert time.perf_counter() - started < 4.0
    assert len(took_s) > 10
    assert max(took_s) < 0.5, sorted(took_s)[-5:]
    streamed = await streaming.answer()
    assert (streamed.status, streamed.whole, streamed.body) == (200, True, EVENT * 20)
    await until(lambda: _is_idle(gateway))


async def _is_idle(gateway):
    return await gateway.in_flight() == 0


async def test_b051_a_client_that_never_speaks_is_let_go(replicas, gateways, raw):
    """A connection without a byte, or with an unfinished request line, ends at receive_s."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, timeouts={"receive_s": 0.3})
    silent, half = await raw(gateway), await raw(gateway)
    await half.send(b"POST /v1/ch")
    async with asyncio.timeout(2.0):
        assert await silent.rest() == b""
        assert (await half.rest())[:13] in (b"", b"HTTP/1.1 408 ")
    assert replica.received == []
