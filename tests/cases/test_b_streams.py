"""Area B: streams of events: as they come, as they are, and honest about their end."""

import asyncio
import json
import shutil
import time

import httpx
import openai
import pytest

from gateway.config.load import config_from_flags
from tests.support.clients import post
from tests.support.replicas import WAIT_S, until

CHAT = "/v1/chat/completions"
STREAM = '{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
WHOLE = '{"model":"m","stream":false,"messages":[{"role":"user","content":"hi"}]}'
DONE = b"data: [DONE]\n\n"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def delta(content, finish="null"):
    return (
        'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":'
        f'[{{"index":0,"delta":{{"content":"{content}"}},"finish_reason":{finish}}}]}}\n\n'
    ).encode()


def usage(prompt_tokens):
    return (
        b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":16}}}\n\n' % prompt_tokens
    )


class Lockstep:
    """Sends 20 events of 40 bytes, each only after the client has the one before."""

    def __init__(self):
        self.events = [b'data: {"choices":[{"text":"%08d"}]}\n\n' % n for n in range(20)]
        self.gates = [asyncio.Event() for _ in self.events]
        self.sent_at = []

    async def __call__(self, conversation):
        await conversation.start_stream()
        for event, gate in zip(self.events, self.gates, strict=True):
            await gate.wait()
            self.sent_at.append(time.perf_counter())
            await conversation.chunk(event)
        await conversation.end()

    async def follow(self, read):
        """Open gate after gate; return the seconds that each event took to the client."""
        took_s = []
        for event, gate in zip(self.events, self.gates, strict=True):
            gate.set()
            received = b""
            while len(received) < len(event):
                received += await read()
            assert received == event, "an event alone: not merged, not split"
            took_s.append(time.perf_counter() - self.sent_at[-1])
        return took_s


@pytest.mark.alone  # measures time
@pytest.mark.parametrize("accept", ["gzip", "gzip, deflate, br, zstd", "*"])
async def test_b030_events_arrive_one_by_one_whatever_the_client_accepts(
    replicas, gateways, raw, accept
):
    """20 events reach a client that accepts gzip one by one, each within 50 ms, uncompressed.

    Stricter than by the clock: the replica sends an event only when the client has the one before,
    so one held back would stop the stream. 50 ms hold for 18 of the 20, for a busy machine's sake.
    """
    events = Lockstep()
    events.gates[0].set()  # the answer's headers wait for its first byte
    [replica] = await replicas(events)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, STREAM, f"accept-encoding: {accept}"))
    head = (await client.head()).lower()
    assert b"content-encoding" not in head
    took_s = await events.follow(client.chunk)
    assert sorted(took_s)[17] < 0.05, took_s
    assert await client.chunk() == b""


NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen unix:{folder}/nginx.sock;
    location / {{ proxy_pass {gateway}; }}
  }}
}}
"""


@pytest.mark.alone  # measures time
async def test_b032_events_come_singly_through_nginx(replicas, gateways, require, tmp_path):
    """nginx with its defaults (proxy_buffering on, HTTP/1.0 to us) hands on event by event."""
    require("nginx", shutil.which("nginx") is not None, "apt-get install nginx-light")
    events = Lockstep()
    events.gates[0].set()
    [replica] = await replicas(events)
    gateway = await gateways(replica)
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(NGINX.format(folder=tmp_path, gateway=gateway.gateway.url))
    nginx = await asyncio.create_subprocess_exec(
        "nginx", "-e", str(tmp_path / "error.log"), "-c", str(configuration)
    )
    try:
        sock = tmp_path / "nginx.sock"
        await until(sock.exists, "nginx")
        reader, writer = await asyncio.open_unix_connection(str(sock))
        writer.write(post(CHAT, STREAM, version="1.0"))
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            took_s = await events.follow(lambda: reader.read(65536))
            assert await reader.read() == b""
        assert sorted(took_s)[17] < 0.05, took_s
        writer.close()
    finally:
        nginx.terminate()
        await nginx.wait()


@pytest.mark.parametrize(
    ("kind", "told"),
    [(b"text/event-stream", [b"no"]), (b"application/json", [])],
    ids=["stream", "whole"],
)
@pytest.mark.parametrize("given", [b"", b"x-accel-buffering: yes\r\n"], ids=["silent", "yes"])
async def test_b032_streams_tell_proxies_not_to_buffer(replicas, gateways, raw, kind, told, given):
    """An event stream carries `X-Accel-Buffering: no`, whatever the replica says; others do not."""

    async def script(conversation):
        await conversation.answer(DONE, kind=kind, extra=given)

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, STREAM))
    answer = await client.answer()
    kept = [b"yes"] if given and not told else []
    assert answer.all(b"x-accel-buffering") == told or answer.all(b"x-accel-buffering") == kept


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_b033_a_stream_cut_anywhere_is_the_same_stream(replicas, gateways, raw, size):
    """Events sent in segments of one byte (two, three, seven) arrive as they are, and are counted.

    Scaled: 0.5 ms between segments instead of 5 ms.
    """
    body = delta("读😀é") + usage(32) + DONE
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    framed = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in (delta("读😀é"), usage(32), DONE))

    async def script(conversation):
        wire = head + framed + b"0\r\n\r\n"
        for start in range(0, len(wire), size):
            await conversation.send(wire[start : start + size])
            await asyncio.sleep(0.0005)

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, STREAM))
    answer = await client.answer()
    assert (answer.whole, answer.body) == (True, body)
    [line] = await until(gateway.requests)
    assert (line["prompt_tokens"], line["cached_tokens"]) == (32, 16)


DEATHS = ["rst", "fin_in_chunk", "fin_between_chunks", "bad_chunk", "fin_in_length"]


def dies(how, events):
    async def script(conversation):
        if how == "fin_in_length":
            head = SSE_HEAD + b"content-length: 9999\r\n\r\n"
            await conversation.send(head + b"".join(events))
        else:
            await conversation.start_stream()
            for event in events:
                await conversation.chunk(event)
        if how == "fin_in_chunk":
            await conversation.send(b'40\r\ndata: {"choices":[{"del')
        if how == "bad_chunk":
            await conversation.send(b"xyz\r\n")
        if how == "rst":
            conversation.reset()
        conversation.writer.close()

    return script


@pytest.mark.parametrize("how", DEATHS)
async def test_b035_a_stream_that_dies_after_data_says_so(replicas, gateways, raw, how):
    """After five events, a death ends the stream with an error event, or cuts the body.

    Never with an invented [DONE] or finish_reason.
    """
    events = [delta(str(number)) for number in range(5)]
    [replica] = await replicas(dies(how, events))
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, STREAM))
    answer = await client.answer()
    assert answer.status == 200
    assert answer.body.startswith(b"".join(events))
    assert b"[DONE]" not in answer.body
    assert b'"finish_reason":"' not in answer.body
    last = answer.body.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    if how == "fin_in_length":  # no room is left for an event of ours in a body of known length
        assert not answer.whole or b"stream_broken" in last
    else:
        assert json.loads(last.removeprefix(b"data: "))["error"]["reason"] == "stream_broken"
    [line] = await until(gateway.requests)
    assert (line["status"], line["error"]) == (200, "stream_broken")
    assert len(replica.received) == 1


@pytest.mark.parametrize("how", DEATHS)
async def test_b035_openai_raises_where_a_stream_dies(replicas, gateways, how):
    """openai-python gives out the five events and then raises; it never ends quietly."""
    [replica] = await replicas(dies(how, [delta(str(number)) for number in range(5)]))
    gateway = await gateways(replica)
    seen = []
    url = f"{gateway.gateway.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="m", stream=True, messages=[{"role": "user", "content": "hi"}]
        )
        # Half an event before ours is no JSON, and openai-python lets that error through.
        with pytest.raises((openai.APIError, httpx.HTTPError, json.JSONDecodeError)):
            await _read_into(seen, stream)
    assert seen == ["0", "1", "2", "3", "4"]


async def _read_into(seen, stream):
    async for chunk in stream:
        seen.append(chunk.choices[0].delta.content)


@pytest.mark.parametrize("how", DEATHS)
async def test_b035_a_stream_that_dies_before_data_is_a_502(replicas, gateways, raw, how):
    """Before the first event the client still gets a status of its own, with JSON."""
    [replica] = await replicas(dies(how, []))
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, STREAM))
    answer = await client.answer()
    if how == "fin_in_chunk":  # half an event is data
        assert answer.status == 200
        assert b"stream_broken" in answer.body
        return
    assert answer.status == 502
    assert answer.header(b"content-type") == b"application/json"
    assert answer.json()["error"]["reason"] == "stream_broken"


OPTIONS = [
    ',"stream_options":{"include_usage":false}',
    ',"stream_options":{"include_usage":true}',
    "",
]


@pytest.mark.parametrize("options", OPTIONS, ids=["false", "true", "none"])
async def test_b041_usage_is_asked_for_by_the_client_or_not_at_all(
    replicas, gateways, raw, options
):
    """The replica sees exactly the client's stream_options, the client exactly its events."""
    body = STREAM.replace('"stream":true', '"stream":true' + options)
    events = [delta("a"), delta("", '"stop"'), DONE]
    if "true" in options:
        events.insert(2, usage(3))

    async def script(conversation):
        await conversation.start_stream()
        for event in events:
            await conversation.chunk(event)
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, body))
    assert (await client.answer()).body == b"".join(events)
    assert replica.received[0].body == body.encode()


def test_b043_by_default_a_prefill_of_nine_minutes_is_not_cut():
    """The default first-byte limit is longer than 540 s, and not the one for connecting."""
    timeouts = config_from_flags(["http://127.0.0.1:1"]).timeouts
    assert timeouts.first_byte_s > 540
    assert timeouts.connect_s < 10
    assert timeouts.total_s is None


@pytest.mark.parametrize("headers_first", [True, False])
async def test_b043_a_long_prefill_is_not_cut_by_the_other_limits(
    replicas, gateways, raw, headers_first
):
    """A first event after longer than the connect, idle and receive limits together arrives.

    Scaled: 1.2 s instead of 130 s, before limits of 0.3 s.
    """

    async def script(conversation):
        if headers_first:
            await conversation.start_stream()
        await asyncio.sleep(1.2)  # the prefill
        if not headers_first:
            await conversation.start_stream()
        await conversation.chunk(DONE)
        await conversation.end()

    [replica] = await replicas(script)
    limits = {"connect_s": 0.3, "idle_s": 0.3, "receive_s": 0.3, "first_byte_s": 10.0}
    gateway = await gateways(replica, timeouts=limits)
    client = await raw(gateway)
    await client.send(post(CHAT, STREAM))
    answer = await client.answer()
    assert (answer.status, answer.whole, answer.body) == (200, True, DONE)


@pytest.mark.parametrize("headers_first", [True, False])
@pytest.mark.parametrize("heartbeat_s", [None, 0.05])
async def test_b043_a_set_limit_that_passes_ends_both_sides(
    replicas, gateways, raw, headers_first, heartbeat_s
):
    """After first_byte_s the client gets a 504, or an error event behind heartbeats.

    Heartbeats begin with the headers: before them nobody knows that the answer is a stream. The
    upstream connection is closed in all cases.
    """
    left = asyncio.Event()

    async def script(conversation):
        if headers_first:
            await conversation.start_stream()
        await conversation.client_left()
        left.set()

    [replica] = await replicas(script)
    gateway = await gateways(replica, timeouts={"first_byte_s": 0.5, "heartbeat_s": heartbeat_s})
    client = await raw(gateway)
    await client.send(post(CHAT, STREAM))
    answer = await client.answer()
    if heartbeat_s is None or not headers_first:
        assert (answer.status, answer.json()["error"]["reason"]) == (504, "replica_timeout")
    else:
        assert answer.status == 200
        assert answer.header(b"content-type").startswith(b"text/event-stream")
        assert answer.body.startswith(b": waiting\n\n: waiting\n\n")
        last = answer.body.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
        assert json.loads(last.removeprefix(b"data: "))["error"]["reason"] == "replica_timeout"
        assert b"[DONE]" not in answer.body
    async with asyncio.timeout(WAIT_S):
        await left.wait()
    assert await gateway.in_flight() == 0


@pytest.mark.parametrize("headers_first", [True, False])
async def test_b043_heartbeats_fill_a_long_prefill_and_end_with_it(
    replicas, gateways, raw, headers_first
):
    """Comments come from the headers to the first token; the events are the replica's.

    Without headers there are none: nobody knows yet whether the answer is a stream or an error.
    """
    events = [delta("a"), delta("b"), DONE]
    prefilled = asyncio.Event()

    async def script(conversation):
        if headers_first:
            await conversation.start_stream()
            await prefilled.wait()
        else:
            await asyncio.sleep(0.5)  # a long prefill
            await conversation.start_stream()
        for event in events:
            await conversation.chunk(event)
            await asyncio.sleep(0.3)  # longer than what would bring another comment
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica, timeouts={"heartbeat_s": 0.1})
    client = await raw(gateway)
    await client.send(post(CHAT, STREAM))
    await client.head()
    if headers_first:
        for _ in range(2):
            assert await client.chunk() == b": waiting\n\n"
    prefilled.set()
    body = b""
    while piece := await client.chunk():
        body += piece
    waiting, _, rest = body.partition(b"data: ")  # some more may have been on their way
    assert waiting == b": waiting\n\n" * (waiting.count(b"\n\n") if headers_first else 0)
    assert b"data: " + rest == b"".join(events)


@pytest.mark.parametrize("done", [True, False])
async def test_b160_a_stream_that_stays_open_ends_by_the_idle_limit(replicas, gateways, raw, done):
    """[DONE] is at the client at once, and the replica's load falls when the idle limit passes.

    Without [DONE] none is made up: the idle limit ends the stream with an error event. Scaled: an
    idle limit of 1 s before a replica that would hold on for ever.
    """
    left = asyncio.Event()
    events = [delta("a"), delta("", '"stop"'), *([DONE] if done else [])]

    async def script(conversation):
        await conversation.start_stream()
        for event in events:
            await conversation.chunk(event)
        await conversation.client_left()
        left.set()

    [replica] = await replicas(script)
    gateway = await gateways(replica, timeouts={"idle_s": 1.0})
    client = await raw(gateway)
    await client.send(post(CHAT, STREAM))
    await client.head()
    received = b""
    while len(received) < len(b"".join(events)):
        received += await client.chunk()
    assert received == b"".join(events)
    assert not left.is_set(), "before the idle limit"
    rest = b""
    while piece := await client.chunk():  # up to the last chunk: the body ends, and well
        rest += piece
    assert b"[DONE]" not in rest
    if not done:
        assert json.loads(rest.strip().removeprefix(b"data: "))["error"]["code"] == 504
    async with asyncio.timeout(WAIT_S):
        await left.wait()
    assert await gateway.in_flight() == 0


TYPED = [
    (b"content-type: text/event-stream; charset=utf-8", DONE),
    (b"CONTENT-TYPE:Text/Event-Stream;charset=UTF-8", DONE),
    (b"Content-Type: application/json", b'{"id":"x"}'),
    (b"content-type: text/plain; charset=utf-8", b"no"),
    (b"x-none: 1", b"?"),
]


async def test_b169_the_content_type_is_the_replicas(replicas, gateways, raw):
    """Content-Type arrives once and unchanged, whatever the request asked for."""

    async def script(conversation):
        line, body = TYPED[(len(replica.received) - 1) // 2]
        head = b"HTTP/1.1 200 OK\r\n%b\r\ntransfer-encoding: chunked\r\n\r\n" % line
        await conversation.send(head)
        await conversation.chunk(body)
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica, timeouts={"heartbeat_s": 5.0})
    client = await raw(gateway)
    for line, body in TYPED:
        name, _, value = line.partition(b":")
        wanted = [value.strip()] if name.lower() == b"content-type" else []
        for request in (STREAM, WHOLE):
            await client.send(post(CHAT, request))
            answer = await client.answer()
            assert answer.all(b"content-type") == wanted
            assert answer.body == body


@pytest.mark.parametrize("is_stream", [True, False])
async def test_b169_the_answer_says_whether_it_is_a_stream(replicas, gateways, raw, is_stream):
    """A broken answer ends as its own type wants, not as the request's `stream` flag says.

    Plain JSON to stream=true is cut; an event stream to stream=false ends with an error event.
    """
    kind = b"Text/Event-Stream" if is_stream else b"application/json"

    async def script(conversation):
        await conversation.start_stream(kind=kind)
        await conversation.chunk(delta("a"))
        conversation.reset()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = await raw(gateway)
    await client.send(post(CHAT, WHOLE if is_stream else STREAM))
    answer = await client.answer()
    assert answer.whole is is_stream
    assert (b"stream_broken" in answer.body) is is_stream
