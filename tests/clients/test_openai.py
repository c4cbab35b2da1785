"""openai-python works unchanged: what it asks arrives, what comes back is what the engine said."""

import asyncio
from dataclasses import dataclass

import openai
import pytest

from tests.support.api_replicas import (
    DONE,
    TOOL_CALL,
    KeepsResponses,
    answer_json,
    calls_a_tool,
    chat_event,
    fields,
    path_of,
)
from tests.support.replicas import Conversation, until

MODEL = "demo-model"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
# The two clients differ in how they read and leave, not in what they send; once is enough there.
ASYNC_ONLY = pytest.mark.parametrize("openai_client", ["async"], indirect=True)


def ask(text, **more):
    """A chat whose answer is the same each time: the simulator writes what the prompt seeds."""
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, **more}


async def test_a_chat_tells_text_usage_and_where_it_went(simulated, simulator, openai_client):
    client = openai_client(simulated)
    direct = simulator.post("/v1/chat/completions", ask("one")).json()
    raw = await client.call("chat.completions.with_raw_response.create", **ask("one"))
    answer = raw.parse()
    assert answer.choices[0].message.content == direct["choices"][0]["message"]["content"]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens == direct["usage"]["prompt_tokens"]
    assert raw.headers["x-warmroute-replica"] == simulator.url.removeprefix("http://")
    assert answer._request_id == raw.headers["x-request-id"]


async def test_a_stream_brings_the_same_text_and_ends_with_usage(simulated, openai_client):
    client = openai_client(simulated)
    whole = await client.call("chat.completions.create", **ask("two"))
    options = {"stream_options": {"include_usage": True}}
    events = await client.events("chat.completions.create", **ask("two", **options))
    *deltas, last = events
    text = "".join(event.choices[0].delta.content or "" for event in deltas)
    assert text == whole.choices[0].message.content
    assert [e.choices[0].finish_reason for e in deltas if e.choices[0].finish_reason] == ["length"]
    assert last.choices == []
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == 8
    assert all(event.usage is None for event in deltas)


@ASYNC_ONLY
async def test_a_stream_without_usage_has_none_added(simulated, openai_client):
    events = await openai_client(simulated).events("chat.completions.create", **ask("three"))
    assert all(event.usage is None and event.choices for event in events)


async def test_completions_stream_or_not_and_take_ids(simulated, openai_client):
    client = openai_client(simulated)
    for prompt in ("river of", [1, 2, 3, 4, 5]):
        request = {"model": MODEL, "prompt": prompt, "max_tokens": 6}
        whole = await client.call("completions.create", **request)
        events = await client.events("completions.create", **request)
        assert "".join(e.choices[0].text for e in events if e.choices) == whole.choices[0].text
        assert whole.usage.completion_tokens == 6


async def test_the_models_are_listed(simulated, openai_client):
    models = await openai_client(simulated).call("models.list")
    assert [(model.id, model.object) for model in models.data] == [(MODEL, "model")]


@ASYNC_ONLY
async def test_many_streams_at_once_do_not_mix(simulated, openai_client):
    client = openai_client(simulated)

    async def text(number):
        events = await client.events("chat.completions.create", **ask(f"number {number}"))
        return "".join(event.choices[0].delta.content or "" for event in events)

    together = await asyncio.gather(*[text(number) for number in range(12)])
    assert together == [await text(number) for number in range(12)]
    assert len(set(together)) == 12
    assert await simulated.in_flight() == 0


async def test_tools_reach_the_engine_and_their_calls_come_back(replicas, gateways, openai_client):
    [replica] = await replicas(calls_a_tool)
    client = openai_client(await gateways(replica))
    request = {"model": "m", "messages": HELLO, "tools": [TOOL], "tool_choice": "auto"}
    answer = await client.call("chat.completions.create", **request)
    [call] = answer.choices[0].message.tool_calls
    assert (call.id, call.function.name) == ("chatcmpl-tool-1", "weather")
    assert call.function.arguments == TOOL_CALL["function"]["arguments"]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert fields(replica.received[0])["tools"] == [TOOL]


@ASYNC_ONLY
async def test_a_tool_call_is_put_together_from_a_stream(replicas, gateways, openai_client):
    [replica] = await replicas(calls_a_tool)
    client = openai_client(await gateways(replica))
    request = {"model": "m", "messages": HELLO, "tools": [TOOL]}
    events = await client.events("chat.completions.create", **request)
    calls = [c for e in events for c in e.choices[0].delta.tool_calls or ()]
    assert calls[0].function.name == "weather"
    assert "".join(call.function.arguments for call in calls) == '{"city": "Köln"}'


@ASYNC_ONLY
async def test_the_turn_after_a_tool_call_arrives_unchanged(replicas, gateways, openai_client):
    [replica] = await replicas(calls_a_tool)
    client = openai_client(await gateways(replica))
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
        {"role": "tool", "tool_call_id": "chatcmpl-tool-1", "content": '{"celsius": 12}'},
    ]
    await client.call("chat.completions.create", model="m", messages=messages, tools=[TOOL])
    assert fields(replica.received[0])["messages"] == messages


@ASYNC_ONLY
async def test_embeddings_pass_in_base64_as_the_client_wants_them(
    replicas, gateways, openai_client
):
    async def script(conversation):
        # Little-endian float32: 1.0, -2.0.
        data = [{"object": "embedding", "index": 0, "embedding": "AACAPwAAAMA="}]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        body = {"object": "list", "data": data, "model": "m", "usage": usage}
        await answer_json(conversation, body)

    [replica] = await replicas(script)
    client = openai_client(await gateways(replica))
    answer = await client.call("embeddings.create", model="m", input=["a", "b"])
    assert answer.data[0].embedding == [1.0, -2.0]
    received = fields(replica.received[0])
    assert (received["input"], received["encoding_format"]) == (["a", "b"], "base64")


@ASYNC_ONLY
async def test_embeddings_of_a_model_that_has_none_are_the_engines_404(simulated, openai_client):
    with pytest.raises(openai.NotFoundError) as caught:
        await openai_client(simulated).call("embeddings.create", model=MODEL, input="a")
    assert caught.value.body == {"detail": "Not Found"}
    assert "x-warmroute-replica" in caught.value.response.headers


async def test_responses_are_made_and_streamed(replicas, gateways, openai_client):
    [replica] = await replicas(KeepsResponses("a"))
    client = openai_client(await gateways(replica))
    answer = await client.call("responses.create", model="m", input="hello")
    assert answer.output_text == "hello"
    events = await client.events("responses.create", model="m", input="hello")
    assert [event.type for event in events] == [
        "response.created",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.completed",
    ]
    assert events[-1].response.output_text == "hello"


@ASYNC_ONLY
async def test_a_stored_response_is_found_on_the_replica_that_made_it(
    replicas, gateways, openai_client
):
    fleet = await replicas(*[KeepsResponses(letter) for letter in "abc"])
    client = openai_client(await gateways(*fleet))
    made = [
        (await client.call("responses.create", model="m", input=f"q{n}", background=True)).id
        for n in range(9)
    ]
    events = await client.events("responses.create", model="m", input="streamed")
    made.append(events[-1].response.id)
    assert len({response_id[:6] for response_id in made}) > 1, "more than one replica was used"
    for response_id in made:
        answer = await client.call("responses.retrieve", response_id=response_id)
        assert (answer.id, answer.status) == (response_id, "completed")
        answer = await client.call("responses.cancel", response_id=response_id)
        assert (answer.id, answer.status) == (response_id, "cancelled")


@ASYNC_ONLY
async def test_a_stored_response_is_found_however_its_answer_was_cut(
    replicas, gateways, openai_client
):
    keeps = KeepsResponses("a")

    async def script(conversation):
        await keeps(InPieces(conversation.request, conversation.reader, conversation.writer))

    fleet = await replicas(script, KeepsResponses("b"))
    client = openai_client(await gateways(*fleet, policies={"default": {"kind": "round_robin"}}))
    made = [(await client.call("responses.create", model="m", input=f"q{n}")).id for n in range(4)]
    assert len(keeps.made) == 2
    for response_id in made:
        answer = await client.call("responses.retrieve", response_id=response_id)
        assert answer.id == response_id


@dataclass
class InPieces(Conversation):
    """Sends ten bytes at a time, each on its own: the gateway sees as many pieces."""

    async def answer(self, body, status=b"200 OK", kind=b"application/json", extra=b""):
        await self.start_stream(kind)
        for start in range(0, len(body), 10):
            await self.chunk(body[start : start + 10])
            await asyncio.sleep(0.001)  # so that the kernel does not put them together again
        await self.end()


@ASYNC_ONLY
async def test_an_unknown_response_is_a_404_of_ours(replicas, gateways, openai_client):
    [replica] = await replicas(KeepsResponses("a"))
    client = openai_client(await gateways(replica))
    for name in ("responses.retrieve", "responses.cancel"):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.call(name, response_id="resp_unknown")
        assert caught.value.body["reason"] == "response_not_found"
    assert replica.received == [], "nobody is asked by chance"


AUDIO = bytes(range(256)) * 500 + b"\r\n--not the boundary\r\n"


# The SDK calls translations deprecated, in one word; vLLM serves them, and clients still use them.
@pytest.mark.filterwarnings("ignore:deprecated$:DeprecationWarning")
@pytest.mark.parametrize("task", ["transcriptions", "translations"])
async def test_an_audio_upload_arrives_whole_and_is_routed_by_its_model(
    replicas, gateways, openai_client, task
):
    async def script(conversation):
        await answer_json(conversation, {"text": "good morning"})

    [replica] = await replicas(script)
    client = openai_client(await gateways(replica))
    name = f"audio.{task}.create"
    answer = await client.call(name, model="m", file=("talk.wav", AUDIO, "audio/wav"), prompt="hi")
    assert answer.text == "good morning"
    [received] = replica.received
    assert path_of(received) == f"/v1/audio/{task}".encode()
    kind = received.header(b"content-type")
    boundary = kind.partition(b"boundary=")[2]
    assert kind.startswith(b"multipart/form-data; boundary=")
    assert received.body.count(b"--" + boundary) == received.body.count(b'; name="') + 1
    assert AUDIO in received.body


@ASYNC_ONLY
async def test_an_audio_upload_for_an_unknown_model_is_a_404(replicas, gateways, openai_client):
    [replica] = await replicas(KeepsResponses("a"))
    client = openai_client(await gateways(replica))
    with pytest.raises(openai.NotFoundError) as caught:
        await client.call("audio.transcriptions.create", model="nope", file=("a.wav", b"RIFF"))
    assert caught.value.body["reason"] == "model_not_found"
    assert replica.received == []


@ASYNC_ONLY
async def test_a_clients_own_headers_and_query_arrive(replicas, gateways, openai_client):
    [replica] = await replicas(calls_a_tool)
    client = openai_client(
        await gateways(replica), default_headers={"x-team": "blue"}, default_query={"api": "2"}
    )
    sent = {"X-Request-Id": "client-made-1"}
    raw = await client.call(
        "chat.completions.with_raw_response.create", model="m", messages=HELLO, extra_headers=sent
    )
    [received] = replica.received
    assert received.line == b"POST /v1/chat/completions?api=2 HTTP/1.1"
    assert received.header(b"x-team") == b"blue"
    assert received.header(b"x-request-id") == b"client-made-1"
    assert raw.headers["x-request-id"] == "client-made-1"
    assert received.header(b"x-stainless-lang") == b"python"


async def test_events_arrive_as_the_engine_sends_them(replicas, gateways, openai_client):
    gates = [asyncio.Event() for _ in range(3)]

    async def script(conversation):
        await conversation.start_stream()
        for number, gate in enumerate(gates):
            await gate.wait()
            await conversation.chunk(chat_event({"content": str(number)}))
        await conversation.chunk(DONE)
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    gates[0].set()
    seen = []
    async for event in openai_client(gateway).each(
        "chat.completions.create", model="m", messages=HELLO
    ):
        seen.append(event.choices[0].delta.content)
        if len(seen) < len(gates):  # the next one is sent only because this one was seen
            gates[len(seen)].set()
    assert seen == ["0", "1", "2"]
    assert await until(gateway.requests)
