"""Whatever fails, openai-python raises the error that says so, and nothing runs on behind it."""

import asyncio
import time

import openai
import pytest

from tests.support.api_replicas import (
    answer_json,
    chat_event,
    fields,
    refuses,
    says_hello,
    vllm_error,
)
from tests.support.replicas import until

CREATE = "chat.completions.create"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
KEYS = {"keys": [{"name": "team-a", "key": "sk-team-a-0123456789", "models": ["m"]}]}
GOOD_KEY = "sk-team-a-0123456789"
# A deadline that a client sets: long enough for an answer on a busy machine to begin, no longer.
IMPATIENT_S = 0.5
# The two clients differ in how they read and leave, not in what they send; once is enough there.
ASYNC_ONLY = pytest.mark.parametrize("openai_client", ["async"], indirect=True)


async def silent(conversation):
    await conversation.client_left()


async def refusal(client, expected, *, name=CREATE, **request):
    """Return the error that a call raises."""
    with pytest.raises(expected) as caught:
        await client.call(name, **{**HELLO, **request})
    return caught.value


# What the gateway refuses by itself


@ASYNC_ONLY
async def test_an_unknown_model_is_not_found(replicas, gateways, openai_client):
    [replica] = await replicas(says_hello)
    client = openai_client(await gateways(replica))
    error = await refusal(client, openai.NotFoundError, model="gpt-nope")
    assert (error.status_code, error.body["reason"]) == (404, "model_not_found")
    assert error.type == "NotFoundError"
    assert "gpt-nope" in error.message
    assert replica.received == []


@ASYNC_ONLY
async def test_engine_internals_are_a_bad_request_that_names_the_field(
    replicas, gateways, openai_client
):
    [replica] = await replicas(says_hello)
    client = openai_client(await gateways(replica))
    extra = {"kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}}
    error = await refusal(client, openai.BadRequestError, extra_body=extra)
    assert (error.status_code, error.param) == (400, "kv_transfer_params")
    assert replica.received == []


@ASYNC_ONLY
async def test_a_body_that_is_too_long_is_a_413(replicas, gateways, openai_client):
    [replica] = await replicas(says_hello)
    client = openai_client(await gateways(replica, limits={"max_body_bytes": 1000}))
    messages = [{"role": "user", "content": "x" * 3_000_000}]
    error = await refusal(client, openai.APIStatusError, messages=messages)
    assert (error.status_code, error.body["reason"]) == (413, "body_too_large")
    assert replica.received == []


async def test_a_wrong_key_is_an_authentication_error(replicas, gateways, openai_client):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth=KEYS)
    for wrong in ("sk-nope", GOOD_KEY[:-1], GOOD_KEY + "x"):
        client = openai_client(gateway, api_key=wrong)
        error = await refusal(client, openai.AuthenticationError)
        assert (error.status_code, error.body["reason"]) == (401, "unauthorized")
        assert error.response.headers["www-authenticate"] == "Bearer"
        assert wrong not in error.response.text
        with pytest.raises(openai.AuthenticationError):
            await client.call("models.list")
    assert replica.received == []


@ASYNC_ONLY
async def test_the_right_key_passes_and_stays_here(replicas, gateways, openai_client):
    [replica] = await replicas(says_hello)
    client = openai_client(await gateways(replica, auth=KEYS), api_key=GOOD_KEY)
    answer = await client.call(CREATE, **HELLO)
    assert answer.choices[0].message.content == "hello"
    assert [model.id for model in (await client.call("models.list")).data] == ["m"]
    assert GOOD_KEY.encode() not in replica.received[0].head


@ASYNC_ONLY
async def test_a_model_that_the_key_may_not_use_is_denied(replicas, gateways, openai_client):
    [replica] = await replicas(says_hello)
    keys = {"keys": [{**KEYS["keys"][0], "models": ["other"]}]}
    client = openai_client(await gateways(replica, auth=keys), api_key=GOOD_KEY)
    error = await refusal(client, openai.PermissionDeniedError)
    assert (error.status_code, error.body["reason"]) == (403, "forbidden")
    assert replica.received == []


@ASYNC_ONLY
async def test_no_replica_is_a_503_that_says_when_to_come_back(replicas, gateways, openai_client):
    [replica] = await replicas(says_hello, healthy=False)
    client = openai_client(await gateways(replica, wait_ready=False))
    error = await refusal(client, openai.InternalServerError)
    assert (error.status_code, error.body["reason"]) == (503, "no_eligible_replica")
    assert int(error.response.headers["retry-after"]) >= 1


@ASYNC_ONLY
async def test_a_full_gateway_is_a_503_with_its_reason(replicas, gateways, openai_client):
    release = asyncio.Event()

    async def script(conversation):
        await release.wait()
        await says_hello(conversation)

    [replica] = await replicas(script)
    gateway = await gateways(replica, limits={"max_in_flight": 1, "queue_requests": 0})
    client = openai_client(gateway)
    first = asyncio.create_task(client.call(CREATE, **HELLO))
    await until(lambda: replica.received)
    error = await refusal(client, openai.InternalServerError)
    assert (error.status_code, error.body["reason"]) == (503, "overloaded")
    assert int(error.response.headers["retry-after"]) >= 1
    release.set()
    assert (await first).choices[0].message.content == "hello"


# What the engine says


@ASYNC_ONLY
async def test_the_engines_own_words_arrive(simulated, openai_client):
    client = openai_client(simulated)
    error = await refusal(client, openai.BadRequestError, model="demo-model", max_tokens=10**7)
    assert error.status_code == 400
    assert error.message.startswith("Error code: 400")
    assert "maximum context length" in error.body["message"]
    assert error.param == "input_tokens"


ERRORS = {
    b"400 Bad Request": openai.BadRequestError,
    b"401 Unauthorized": openai.AuthenticationError,
    b"404 Not Found": openai.NotFoundError,
    b"422 Unprocessable Entity": openai.UnprocessableEntityError,
    b"429 Too Many Requests": openai.RateLimitError,
    b"500 Internal Server Error": openai.InternalServerError,
    b"503 Service Unavailable": openai.InternalServerError,
}


async def test_an_engines_errors_are_raised_as_themselves(replicas, gateways, openai_client):
    async def script(conversation):
        status = fields(conversation.request)["user"].encode()
        body = vllm_error("the engine's own words", "SomeError", int(status[:3]), "messages")
        await answer_json(conversation, body, status, b"x-engine: 1\r\n")

    [replica] = await replicas(script)
    client = openai_client(await gateways(replica))
    for status, expected in ERRORS.items():
        for stream in (False, True):
            error = await refusal(client, expected, user=status.decode(), stream=stream)
            assert type(error) is expected
            assert error.status_code == error.body["code"] == int(status[:3])
            assert error.body["message"] == "the engine's own words"
            assert error.response.headers["x-engine"] == "1"
    assert len(replica.received) == 2 * len(ERRORS), "none was sent twice"


async def test_a_client_that_retries_waits_as_long_as_the_engine_asked(
    replicas, gateways, openai_client
):
    seen = []

    async def script(conversation):
        seen.append(time.monotonic())
        if len(seen) > 1:
            await says_hello(conversation)
            return
        busy = vllm_error("busy", "RateLimitError", 429)
        await answer_json(conversation, busy, b"429 Too Many Requests", b"retry-after: 1\r\n")

    [replica] = await replicas(script)
    client = openai_client(await gateways(replica), max_retries=1)
    answer = await client.call(CREATE, **HELLO)
    assert answer.choices[0].message.content == "hello"
    assert seen[1] - seen[0] >= 1.0


@ASYNC_ONLY
async def test_what_retry_after_says_is_long_enough(replicas, gateways, openai_client):
    [replica] = await replicas(says_hello)
    keys = {"keys": [{**KEYS["keys"][0], "requests_per_minute": 60}]}
    gateway = await gateways(replica, auth=keys)
    client = openai_client(gateway, api_key=GOOD_KEY)
    for _ in range(10):  # a sixth of its minute at once
        await client.call(CREATE, **HELLO)
    error = None
    while error is None:  # on a slow machine one or two more have been earned meanwhile
        error = await error_of(client)
    assert error.body["reason"] == "rate_limited"
    assert error.response.headers["retry-after"] == "1"
    patient = openai_client(gateway, api_key=GOOD_KEY, max_retries=1)
    answer = await patient.call(CREATE, **HELLO)
    assert answer.choices[0].message.content == "hello"


async def error_of(client):
    try:
        await client.call(CREATE, **HELLO)
    except openai.RateLimitError as error:
        return error
    return None


@ASYNC_ONLY
async def test_another_replica_answers_for_one_that_is_busy(replicas, gateways, openai_client):
    busy = refuses(b"503 Service Unavailable", vllm_error("busy", "ServiceUnavailable", 503))
    fleet = await replicas(busy, says_hello)
    client = openai_client(await gateways(*fleet))
    for number in range(6):
        messages = [{"role": "user", "content": f"question {number}"}]
        answer = await client.call(CREATE, model="m", messages=messages)
        assert answer.choices[0].message.content == "hello"


# Streams and bodies that break


async def breaks_after_two_events(conversation):
    await conversation.start_stream()
    for text in ("one", "two"):
        await conversation.chunk(chat_event({"content": text}))
    conversation.reset()


async def breaks_within_an_event(conversation):
    await conversation.start_stream()
    for text in ("one", "two"):
        await conversation.chunk(chat_event({"content": text}))
    await conversation.chunk(chat_event({"content": "three"})[:40])
    conversation.reset()


async def ends_its_connection_politely(conversation):
    await conversation.start_stream()
    for text in ("one", "two"):
        await conversation.chunk(chat_event({"content": text}))
    conversation.writer.close()


@pytest.mark.parametrize("script", [breaks_after_two_events, ends_its_connection_politely])
async def test_a_broken_stream_raises_after_what_did_arrive(
    replicas, gateways, openai_client, script
):
    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = openai_client(gateway)
    events, error = await client.events_until(openai.APIError, CREATE, **HELLO)
    assert [event.choices[0].delta.content for event in events] == ["one", "two"]
    assert error.body["reason"] == "stream_broken"
    assert await gateway.in_flight() == 0


@ASYNC_ONLY
async def test_a_stream_that_breaks_within_an_event_does_not_end_silently(
    replicas, gateways, openai_client
):
    """What came of the half event was sent on at once; the SDK fails to read it as JSON."""
    [replica] = await replicas(breaks_within_an_event)
    gateway = await gateways(replica)
    client = openai_client(gateway)
    events, _ = await client.events_until((openai.APIError, ValueError), CREATE, **HELLO)
    assert [event.choices[0].delta.content for event in events] == ["one", "two"]
    assert await gateway.in_flight() == 0


@ASYNC_ONLY
async def test_a_broken_stream_of_responses_raises(replicas, gateways, openai_client):
    async def script(conversation):
        await conversation.start_stream()
        event = b'{"type":"response.output_text.delta","delta":"one","sequence_number":0}'
        await conversation.chunk(b"event: response.output_text.delta\ndata: " + event + b"\n\n")
        conversation.reset()

    [replica] = await replicas(script)
    client = openai_client(await gateways(replica))
    request = {"model": "m", "input": "hello"}
    events, error = await client.events_until(openai.APIError, "responses.create", **request)
    assert [event.type for event in events] == ["response.output_text.delta"]
    assert error.body["reason"] == "stream_broken"


@ASYNC_ONLY
async def test_a_stream_that_never_begins_is_a_502(replicas, gateways, openai_client):
    async def script(conversation):
        await conversation.start_stream()  # vLLM sends these headers before the prefill
        conversation.reset()

    [replica] = await replicas(script)
    client = openai_client(await gateways(replica))
    with pytest.raises(openai.InternalServerError) as caught:
        await client.events(CREATE, **HELLO)
    assert (caught.value.status_code, caught.value.body["reason"]) == (502, "stream_broken")


async def test_a_body_that_is_cut_is_no_answer(replicas, gateways, openai_client):
    async def script(conversation):
        await conversation.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        await conversation.send(b'content-length: 1000\r\n\r\n{"id":"x","choices":[')
        conversation.reset()

    [replica] = await replicas(script)
    client = openai_client(await gateways(replica))
    await refusal(client, openai.APIConnectionError)


@ASYNC_ONLY
async def test_a_replica_that_says_nothing_is_a_504(replicas, gateways, openai_client):
    [replica] = await replicas(silent)
    client = openai_client(await gateways(replica, timeouts={"first_byte_s": 0.1}))
    error = await refusal(client, openai.InternalServerError)
    assert (error.status_code, error.body["reason"]) == (504, "replica_timeout")


# Clients that leave


async def streams_for_ever(conversation):
    await conversation.start_stream()
    while True:
        await conversation.chunk(chat_event({"content": "x"}))
        await asyncio.sleep(0.02)


def leaves_a_mark(script):
    """Return a script and the event that its connection's end sets."""
    left = asyncio.Event()

    async def marked(conversation):
        try:
            await script(conversation)
        finally:
            left.set()

    return marked, left


@pytest.mark.parametrize("stream", [False, True])
async def test_a_clients_timeout_ends_the_request_at_the_replica(
    replicas, gateways, openai_client, stream
):
    script, left = leaves_a_mark(silent)
    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = openai_client(gateway, timeout=IMPATIENT_S)
    await refusal(client, openai.APITimeoutError, stream=stream)
    async with asyncio.timeout(1.0):  # the promise: within a second
        await left.wait()
    [line] = await until(gateway.requests)
    assert line["status"] == 499
    assert await gateway.in_flight() == 0


async def test_a_timeout_between_events_ends_the_request(replicas, gateways, openai_client):
    async def pauses(conversation):
        await conversation.start_stream()
        await conversation.chunk(chat_event({"content": "one"}))
        await conversation.client_left()

    script, left = leaves_a_mark(pauses)
    [replica] = await replicas(script)
    gateway = await gateways(replica)
    with pytest.raises(openai.APITimeoutError):
        await openai_client(gateway, timeout=IMPATIENT_S).events(CREATE, **HELLO)
    async with asyncio.timeout(1.0):
        await left.wait()
    assert await until(gateway.requests)
    assert await gateway.in_flight() == 0


async def test_a_stream_that_is_closed_early_ends_at_the_replica(replicas, gateways, openai_client):
    script, left = leaves_a_mark(streams_for_ever)
    [replica] = await replicas(script)
    gateway = await gateways(replica)
    client = openai_client(gateway)
    opened = await client.call(CREATE, stream=True, **HELLO)
    if client.threaded:
        await asyncio.to_thread(next, opened)
        await asyncio.to_thread(opened.close)
    else:
        await anext(opened)
        await opened.close()
    async with asyncio.timeout(1.0):
        await left.wait()
    assert await until(gateway.requests)
    assert await gateway.in_flight() == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_task_ends_the_request_at_the_replica(replicas, gateways, stream):
    script, left = leaves_a_mark(silent)
    [replica] = await replicas(script)
    gateway = await gateways(replica)
    url = gateway.gateway.url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        task = asyncio.create_task(client.chat.completions.create(**HELLO, stream=stream))
        await until(lambda: replica.received)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(1.0):
            await left.wait()
    assert await until(gateway.requests)
    assert await gateway.in_flight() == 0
