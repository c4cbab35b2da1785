"""Anthropic's SDK on /v1/messages: vLLM speaks it, so the gateway carries it."""

import asyncio

import anthropic
import pytest

from tests.support.api_replicas import (
    answer_json,
    anthropic_error,
    fields,
    message_events,
    path_of,
    speaks_anthropic,
)
from tests.support.replicas import until

CREATE = "messages.create"
HELLO = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
KEY = "sk-team-a-0123456789"
AUTH = {"keys": [{"name": "team-a", "key": KEY}]}
# The two clients differ in how they read and leave, not in what they send; once is enough there.
ASYNC_ONLY = pytest.mark.parametrize("anthropic_client", ["async"], indirect=True)


async def test_a_message_is_answered(replicas, gateways, anthropic_client):
    [replica] = await replicas(speaks_anthropic)
    client = anthropic_client(await gateways(replica))
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = await client.call(CREATE, **HELLO, system=system)
    assert (answer.content[0].text, answer.stop_reason) == ("hello", "end_turn")
    assert answer.usage.input_tokens == 12
    [received] = replica.received
    assert path_of(received) == b"/v1/messages"
    assert fields(received) == {**HELLO, "system": system}
    assert received.header(b"anthropic-version")
    assert received.header(b"authorization") == b"Bearer sk-test", "the engine's, without auth here"


async def test_a_stream_keeps_its_named_events(replicas, gateways, anthropic_client):
    [replica] = await replicas(speaks_anthropic)
    client = anthropic_client(await gateways(replica))
    events = await client.events(CREATE, **HELLO)
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [e.delta.text for e in events if e.type == "content_block_delta"] == ["hel", "lo"]


async def test_the_sdks_own_accumulation_works(replicas, gateways):
    [replica] = await replicas(speaks_anthropic)
    gateway = await gateways(replica)
    async with (
        anthropic.AsyncAnthropic(base_url=gateway.gateway.url, api_key="k") as client,
        client.messages.stream(**HELLO) as stream,
    ):
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert texts == ["hel", "lo"]
    assert (final.content[0].text, final.usage.output_tokens) == ("hello", 2)


@ASYNC_ONLY
async def test_tokens_are_counted_by_the_engine(replicas, gateways, anthropic_client):
    [replica] = await replicas(speaks_anthropic)
    client = anthropic_client(await gateways(replica))
    request = {"model": "m", "messages": HELLO["messages"]}
    assert (await client.call("messages.count_tokens", **request)).input_tokens == 12
    assert path_of(replica.received[0]) == b"/v1/messages/count_tokens"


ERRORS = [
    (b"400 Bad Request", "invalid_request_error", anthropic.BadRequestError),
    (b"404 Not Found", "not_found_error", anthropic.NotFoundError),
    (b"429 Too Many Requests", "rate_limit_error", anthropic.RateLimitError),
    (b"500 Internal Server Error", "api_error", anthropic.InternalServerError),
    (b"529 Overloaded", "overloaded_error", anthropic.APIStatusError),
]


async def test_an_engines_errors_keep_anthropics_shape(replicas, gateways, anthropic_client):
    bodies = {status: anthropic_error(kind, "max_tokens: required") for status, kind, _ in ERRORS}

    async def script(conversation):
        status = fields(conversation.request)["metadata"]["user_id"].encode()
        await answer_json(conversation, bodies[status], status)

    [replica] = await replicas(script)
    client = anthropic_client(await gateways(replica))
    for status, kind, expected in ERRORS:
        for stream in (False, True):
            user = {"user_id": status.decode()}
            with pytest.raises(expected) as caught:
                await client.call(CREATE, **HELLO, metadata=user, stream=stream)
            error = caught.value
            assert (error.status_code, error.body) == (int(status[:3]), bodies[status])
            assert error.type == kind


@ASYNC_ONLY
async def test_an_error_event_of_the_engine_is_raised(replicas, gateways, anthropic_client):
    async def script(conversation):
        await conversation.start_stream()
        await conversation.chunk(message_events("hel")[0])
        await conversation.chunk(
            b'event: error\ndata: {"type": "error", "error": '
            b'{"type": "overloaded_error", "message": "busy"}}\n\n'
        )
        await conversation.end()

    [replica] = await replicas(script)
    client = anthropic_client(await gateways(replica))
    with pytest.raises(anthropic.APIError) as caught:
        await client.events(CREATE, **HELLO)
    assert caught.value.body == anthropic_error("overloaded_error", "busy")


@pytest.mark.parametrize(("num_whole", "half"), [(1, 0), (4, 10)])
async def test_a_broken_stream_raises_and_does_not_end_silently(
    replicas, gateways, anthropic_client, num_whole, half
):
    """The SDK takes no notice of events without a name: ours has to be named."""

    async def script(conversation):
        await conversation.start_stream()
        events = message_events("hel", "lo")
        for event in events[:num_whole]:
            await conversation.chunk(event)
        if half:  # within the event's name
            await conversation.chunk(events[num_whole][:half])
        conversation.reset()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = anthropic_client(gateway)
    events, error = await client.events_until(anthropic.APIError, CREATE, **HELLO)
    assert len(events) == num_whole - (num_whole > 2), "all that came whole, without the ping"
    assert error.body["type"] == "error"
    assert error.body["error"]["reason"] == "stream_broken"
    assert await gateway.in_flight() == 0


def by_header(key):
    """Options of a client that sends x-api-key, as the API's documents and older SDKs do."""
    return {"api_key": None, "default_headers": {"X-Api-Key": key}}


async def test_x_api_key_lets_in_and_goes_no_further(replicas, gateways, anthropic_client):
    [replica] = await replicas(speaks_anthropic)
    gateway = await gateways(replica, auth=AUTH)
    client = anthropic_client(gateway, **by_header(KEY))
    assert (await client.call(CREATE, **HELLO)).content[0].text == "hello"
    assert len(await client.events(CREATE, **HELLO)) == 7
    for received in replica.received:
        assert KEY.encode() not in received.head
        assert received.header(b"x-api-key") is None
    assert KEY not in str(gateway.log)


@pytest.mark.parametrize("option", ["api_key", "auth_token"])
@ASYNC_ONLY
async def test_the_sdks_own_ways_let_in_too(replicas, gateways, anthropic_client, option):
    [replica] = await replicas(speaks_anthropic)
    gateway = await gateways(replica, auth=AUTH)
    client = anthropic_client(gateway, **{"api_key": None, option: KEY})
    assert (await client.call(CREATE, **HELLO)).content[0].text == "hello"
    assert KEY.encode() not in replica.received[0].head


@pytest.mark.parametrize("options", [by_header(KEY + "x"), {"api_key": KEY + "x"}])
@ASYNC_ONLY
async def test_a_wrong_key_is_an_authentication_error(
    replicas, gateways, anthropic_client, options
):
    [replica] = await replicas(speaks_anthropic)
    client = anthropic_client(await gateways(replica, auth=AUTH), **options)
    for stream in (False, True):
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await client.call(CREATE, **HELLO, stream=stream)
        assert caught.value.status_code == 401
        assert KEY not in caught.value.response.text
    assert replica.received == []


@ASYNC_ONLY
async def test_what_the_gateway_refuses_is_raised_by_its_status(
    replicas, gateways, anthropic_client
):
    [replica] = await replicas(speaks_anthropic)
    gateway = await gateways(replica, limits={"max_body_bytes": 2000})
    client = anthropic_client(gateway)
    with pytest.raises(anthropic.NotFoundError):
        await client.call(CREATE, **{**HELLO, "model": "nope"})
    with pytest.raises(anthropic.RequestTooLargeError):
        await client.call(CREATE, **HELLO, system="x" * 3000)
    with pytest.raises(anthropic.BadRequestError):
        await client.call(CREATE, **HELLO, extra_body={"kv_transfer_params": {}})
    assert replica.received == []


async def test_a_stream_that_is_left_ends_at_the_replica(replicas, gateways):
    left = asyncio.Event()

    async def script(conversation):
        await conversation.start_stream()
        for event in message_events("hel")[:4]:
            await conversation.chunk(event)
        await conversation.client_left()
        left.set()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    async with anthropic.AsyncAnthropic(base_url=gateway.gateway.url, api_key="k") as client:
        async with client.messages.stream(**HELLO) as stream:
            assert await anext(aiter(stream.text_stream)) == "hel"
        async with asyncio.timeout(1.0):
            await left.wait()
    assert await until(gateway.requests)
    assert await gateway.in_flight() == 0
