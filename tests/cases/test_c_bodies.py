"""Area C, bodies: whatever a client puts into a body, the gateway routes it or says what is wrong.

The upstream's verdict on a legal or illegal body is the upstream's to give; ours is never a 500.
"""

import asyncio
import json
import math
import time
from collections import Counter

import pytest

from gateway.config.load import config_from_flags
from gateway.prompt.body import BodyKind, read_body
from gateway.prompt.prepare import Preparer
from routing.hashing import HashSpec, block_keys, pack_tokens
from tests.support.replicas import until

DEMO_MODEL = "loadtests/demo_model"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
VERDICT = b'{"error":{"message":"the engine says no","type":"BadRequestError","code":400}}'


async def answers(conversation):
    await conversation.answer(b'{"id":"x","choices":[]}')


async def verdict(conversation):
    await conversation.answer(VERDICT, status=b"400 Bad Request")


@pytest.fixture
async def tokenizing(replicas, gateways):
    """Start one replica and a gateway that tokenizes: `await tokenizing(script)`."""

    async def start(script):
        [replica] = await replicas(script)
        return replica, await gateways(config_from_flags([replica.url], DEMO_MODEL))

    return start


async def post(gateway, path, body, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **headers}
    return await gateway.client.post(path, content=content, headers=headers)


async def problems(gateway):
    """Return how often prompts were routed without token ids, by problem."""
    page = (await gateway.admin.get("/metrics")).text
    lines = [x for x in page.splitlines() if x.startswith("warmroute_prepare_problems_total{")]
    return {
        line.partition('problem="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
    }


def no_bug(gateway):
    return [line for line in gateway.log if line["event"] == "internal_error"] == []


# C058: "\ud83d" in JSON is half an emoji: legal JSON, no text.

LONE = "\\ud83d"
SURROGATES = {
    "chat": (CHAT, '{"model":"m","messages":[{"role":"user","content":"emoji %s"}]}'),
    "completion": (COMPLETIONS, '{"model":"m","prompt":"emoji %s"}'),
    "prompts": (COMPLETIONS, '{"model":"m","prompt":["emoji %s","b"]}'),
    "part": (
        CHAT,
        '{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"%s"}]}]}',
    ),
    "role": (CHAT, '{"model":"m","messages":[{"role":"%s","content":"a"}]}'),
    "salt": (CHAT, '{"model":"m","messages":[{"role":"user","content":"a"}],"cache_salt":"%s"}'),
    "user": (CHAT, '{"model":"m","messages":[{"role":"user","content":"a"}],"user":"%s"}'),
    "key": (CHAT, '{"model":"m","messages":[{"role":"user","content":"a"}],"%s":1}'),
    "system": ("/v1/messages", '{"model":"m","system":"%s","messages":[{"role":"user"}]}'),
    "responses": ("/v1/responses", '{"model":"m","input":"%s"}'),
    "embeddings": ("/v1/embeddings", '{"model":"m","input":"%s"}'),
}


@pytest.mark.parametrize(
    "half", [LONE, "\\udc4d", "\\udc4d\\ud83d"], ids=["high", "low", "swapped"]
)
async def test_c058_lone_surrogates_go_upstream_as_they_are(tokenizing, half):
    """Half an emoji anywhere in a body is forwarded byte by byte, and routed without ids."""
    replica, gateway = await tokenizing(answers)
    bodies = [(path, (text % half).encode()) for path, text in SURROGATES.values()]
    for path, body in bodies:
        answer = await post(gateway, path, body)
        assert answer.status_code == 200, (path, body, answer.text)
    assert [received.body for received in replica.received] == [body for _, body in bodies]
    assert (await problems(gateway))["not_text"] >= 4
    assert no_bug(gateway)
    assert await gateway.in_flight() == 0


async def test_c058_a_lone_surrogate_in_the_models_name_is_an_unknown_model(tokenizing):
    """A name that no text can hold is a 404 like any other, in valid JSON."""
    replica, gateway = await tokenizing(answers)
    body = b'{"model":"m\\ud83d","messages":[{"role":"user","content":"a"}]}'
    answer = await post(gateway, CHAT, body)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (404, "model_not_found")
    assert replica.received == []
    assert no_bug(gateway)


# C062 and C064: histories that a template may stumble over.

HISTORY = {
    "calls_empty": ({"tool_calls": []}, None),
    "calls_null": ({"tool_calls": None}, None),
    "arguments_object": (
        {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]},
        "refused",
    ),
    "arguments_not_json": (
        {
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "f", "arguments": "{broken"},
                }
            ]
        },
        None,
    ),
    "calls_text": ({"tool_calls": "f"}, "refused"),
    "calls_number": ({"tool_calls": 7}, "refused"),
    "call_null": ({"tool_calls": [None]}, "refused"),
    "function_missing": ({"tool_calls": [{"id": "c"}]}, "refused"),
}


async def test_c062_tool_call_histories_get_the_engines_verdict(tokenizing):
    """Odd tool calls are forwarded and counted; what the engine says of them passes."""
    replica, gateway = await tokenizing(verdict)
    for name, (fields, _) in HISTORY.items():
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello", **fields},
            {"role": "user", "content": "more"},
        ]
        answer = await post(gateway, CHAT, {"model": "m", "messages": messages})
        assert (answer.status_code, answer.content) == (400, VERDICT), name
        assert json.loads(replica.received[-1].body)["messages"] == messages
    expected = Counter(problem for _, problem in HISTORY.values() if problem)
    assert await problems(gateway) == expected
    lines = await _until_requests(gateway, len(HISTORY))
    for line, (_, problem) in zip(lines, HISTORY.values(), strict=True):
        assert line["rung"] == ("hashed" if problem else "predicted")
    assert no_bug(gateway)


DEVELOPER = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "Only answer in rhyme."},
        {"role": "user", "content": "capital of France?"},
    ],
}


async def test_c064_a_developer_message_is_forwarded(tokenizing):
    """The role that the template does not know costs nothing: mapped as the engine maps it."""
    replica, gateway = await tokenizing(answers)
    assert (await post(gateway, CHAT, DEVELOPER)).status_code == 200
    assert json.loads(replica.received[0].body) == DEVELOPER
    assert await problems(gateway) == {}


async def test_c064_a_templates_refusal_is_not_shown_and_does_not_block(
    replicas, gateways, tmp_path
):
    """A template that raises is counted; the request goes by load and the client sees nothing."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        source = f"{DEMO_MODEL}/{name}"
        (tmp_path / name).write_bytes(await asyncio.to_thread(_read, source))
    template = "{{ raise_exception('Unexpected message role CANARY') }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    [replica] = await replicas(answers)
    gateway = await gateways(config_from_flags([replica.url], str(tmp_path)))
    answer = await post(gateway, CHAT, DEVELOPER)
    assert answer.status_code == 200
    assert "CANARY" not in answer.text + str(answer.headers) + json.dumps(gateway.log)
    assert await problems(gateway) == {"template_refused": 1.0}
    assert json.loads(replica.received[0].body) == DEVELOPER


def _read(name):
    with open(name, "rb") as file:  # noqa: PTH123 - runs in a thread
        return file.read()


# C066: every form of a completion's prompt.

PROMPTS = {
    "text": b'"abc"',
    "texts": b'["abc","def"]',
    "ids": b"[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
    "id_lists": b"[[1,2,3],[4,5]]",
    "empty_list": b"[]",
    "empty_text": b'""',
    "embeds": b'null,"prompt_embeds":"AAAA"',
    "mixed": b'["abc",[1,2]]',
    "object": b'{"prompt":"abc"}',
    "number": b"7",
    "negative_ids": b"[-1,2]",
    "huge_ids": b"[99999999999999999999]",
    "bools": b"[true,false]",
    "floats": b"[1.0,2.5]",
}


async def test_c066_every_prompt_form_is_forwarded_byte_by_byte(tokenizing):
    """No form of a prompt is refused by the gateway: the engine decides."""
    replica, gateway = await tokenizing(verdict)
    for form, prompt in PROMPTS.items():
        body = b'{"model":"m", "prompt":%b,"max_tokens":1}' % prompt
        answer = await post(gateway, COMPLETIONS, body)
        assert (answer.status_code, answer.content) == (400, VERDICT), form
        assert replica.received.pop().body == body
        assert replica.received == []
    assert no_bug(gateway)


async def test_c066_a_list_of_ids_is_hashed_as_ids_without_a_tokenizer():
    """Ids are what block keys are made of, so no tokenizer is needed for them."""
    body = read_body(b'{"model":"m","prompt":%b}' % PROMPTS["ids"], BodyKind.COMPLETION)
    prompt = await Preparer(None, None, 1.0, 1024, 2**20).prepare(body)
    assert (prompt.num_tokens, prompt.problem) == (17, None)
    spec = HashSpec("m", 16)
    assert prompt.keys(spec) == block_keys(pack_tokens(list(range(1, 17))), spec)


async def test_c066_equal_ids_go_where_they_are_cached(replicas, gateways):
    """Over HTTP and without a tokenizer: the second time, the first block is expected cached."""
    fleet = await replicas(answers, answers)
    config = config_from_flags([replica.url for replica in fleet])
    models = [config.models[0].model_dump() | {"block_size": 16}]
    gateway = await gateways(config, models=models)
    body = b'{"model":"m","prompt":%b}' % PROMPTS["ids"]
    first = await post(gateway, COMPLETIONS, body)
    second = await post(gateway, COMPLETIONS, body)
    matched = [answer.headers["x-warmroute-matched-tokens"] for answer in (first, second)]
    assert matched == ["0", "16"]
    replica = [answer.headers["x-warmroute-replica"] for answer in (first, second)]
    assert replica[0] == replica[1]


# C068: pictures.

LONG = "the same words behind the picture " * 40


def picture(which, text="what is it?", after=""):
    parts = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{which}"}},
    ]
    if after:
        parts.append({"type": "text", "text": after})
    return {"model": "m", "messages": [{"role": "user", "content": parts}]}


@pytest.mark.parametrize("after", ["", LONG], ids=["short", "long_text_after"])
async def test_c068_two_pictures_are_never_taken_for_the_same(replicas, gateways, after):
    """Nothing behind a picture counts as cached because a prompt with another one was routed."""
    [replica] = await replicas(answers)
    config = config_from_flags([replica.url], DEMO_MODEL)
    gateway = await gateways(config, models=[config.models[0].model_dump() | {"block_size": 16}])
    plain = {"model": "m", "messages": [{"role": "user", "content": LONG}]}
    matched = []
    for body in (plain, plain, picture("AAAA", after=after), picture("BBBB", after=after)):
        answer = await post(gateway, CHAT, body)
        assert answer.status_code == 200
        matched.append(int(answer.headers["x-warmroute-matched-tokens"]))
    assert matched[1] > 0, "text alone does match"
    assert matched[3] == 0
    again = await post(gateway, CHAT, picture("AAAA", after=after))
    assert again.status_code == 200
    assert no_bug(gateway)


def test_c068_the_same_picture_has_the_same_affinity_and_another_one_has_not():
    """Where the whole beginning is known by its bytes, pictures differ in them."""
    heads = [
        read_body(json.dumps(picture(which)).encode(), BodyKind.CHAT).head()
        for which in ("AAAA", "BBBB", "AAAA")
    ]
    assert heads[0] == heads[2] != heads[1]


ODD_CONTENT = [
    [],
    [None],
    [7],
    [[]],
    ["text"],
    [{}],
    [{"type": None}],
    [{"type": "text"}],
    [{"type": "text", "text": 7}],
    [{"type": "image_url"}],
    [{"type": "image_url", "image_url": "http://x/a.png"}],
    [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
    [{"type": "video_url", "video_url": {"url": "x"}}],
    {"type": "text", "text": "no list"},
    7,
    None,
]


async def test_c068_list_content_of_any_form_never_crashes(tokenizing):
    """Content that is a list of anything is forwarded."""
    replica, gateway = await tokenizing(answers)
    for content in ODD_CONTENT:
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        assert (await post(gateway, CHAT, body)).status_code == 200, content
    assert len(replica.received) == len(ODD_CONTENT)
    assert no_bug(gateway)


# C070: messages that are none.

MESSAGES = {
    "missing": None,
    "null": "null",
    "number": "123",
    "empty": "[]",
    "null_inside": "[null]",
    "text_inside": '["hi"]',
    "list_inside": "[[]]",
    "object": '{"role":"user"}',
    "false": "false",
    "text": '"hi"',
}


@pytest.mark.parametrize(("model", "allowed"), [("m", {400}), ("unknown", {400, 404})])
async def test_c070_wrong_messages_are_a_schema_error(tokenizing, model, allowed):
    """A known model with wrong messages is a 400, ours or the engine's; never a 404 or a 500."""
    replica, gateway = await tokenizing(verdict)
    for name, text in MESSAGES.items():
        replica.received.clear()
        field = "" if text is None else f',"messages":{text}'
        answer = await post(gateway, CHAT, f'{{"model":"{model}"{field}}}'.encode())
        assert answer.status_code in allowed, (name, answer.text)
        assert answer.json()["error"]["message"]
        if not replica.received and answer.status_code == 400:
            assert answer.json()["error"]["param"] == "messages"
        assert await gateway.in_flight() == 0
    assert no_bug(gateway)


# C071: what is no JSON.

DEEP = 100_000
NO_JSON = {
    "empty": b"",
    "brace": b"{",
    "null": b"null",
    "list": b"[]",
    "text": b'"x"',
    "number": b"7",
    "latin1": b'{"model":"m","messages":[{"role":"user","content":"caf\xe9"}]}',
    "half_utf8": b'{"model":"m","messages":[{"role":"user","content":"\xf0\x9f"}]}',
    "deep": b"[" * DEEP,
    "deep_objects": b'{"a":' * DEEP,
    "deep_in_messages": b'{"model":"m","messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "garbage": bytes(range(256)),
    "two": b'{"model":"m"}{"model":"m"}',
    "huge_number": b'{"model":"m","messages":[1' + b"0" * 10_000 + b"]}",
    "control": b'{"model":"m","messages":[{"role":"user","content":"a\x00b"}]}',
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/embeddings", "/invocations"])
async def test_c071_what_is_no_json_is_a_400(tokenizing, path):
    """A broken body gets OpenAI's error in under 50 ms, and nothing reaches the replica."""
    replica, gateway = await tokenizing(answers)
    for name, body in NO_JSON.items():
        took_s = math.inf
        for _ in range(3):  # the fastest of three: a busy machine is not what is measured
            began = time.perf_counter()
            answer = await post(gateway, path, body)
            took_s = min(took_s, time.perf_counter() - began)
            assert answer.status_code == 400, (name, answer.text)
            assert answer.json()["error"]["type"] == "BadRequestError"
        assert took_s < 0.05, name
    assert replica.received == []
    assert no_bug(gateway)


async def test_c071_other_unicode_encodings_are_taken_as_the_engine_takes_them(tokenizing):
    """Python's json detects UTF-8 with a BOM, UTF-16 and UTF-32, in the engine and here."""
    replica, gateway = await tokenizing(answers)
    text = '{"model":"m","messages":[{"role":"user","content":"\u00e9"}]}'
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
        replica.received.clear()
        body = text.encode(encoding)
        answer = await post(gateway, CHAT, body)
        assert answer.status_code in (200, 400)
        forwarded = [body] if answer.status_code == 200 else []
        assert [received.body for received in replica.received] == forwarded
    assert no_bug(gateway)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_c071_the_engine_judges_the_content_type(tokenizing, kind):
    """Valid JSON under another content type goes upstream with that type; the verdict passes."""
    replica, gateway = await tokenizing(verdict)
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}]}'
    headers = {} if kind is None else {"content-type": kind}
    answer = await gateway.client.post(CHAT, content=body, headers=headers)
    assert (answer.status_code, answer.content) == (400, VERDICT)
    [received] = replica.received
    assert received.body == body
    assert received.header(b"content-type") == (kind.encode() if kind else None)


async def test_c071_no_depth_of_nesting_is_a_500(tokenizing):
    """Between what every parser takes and what none takes lies no depth where we fail."""
    replica, gateway = await tokenizing(answers)
    for depth in [100, *range(900, 980, 4), 1500, 3000]:
        nested = b"[" * depth + b"]" * depth
        for path, field in ((CHAT, b"messages"), (COMPLETIONS, b"prompt"), (CHAT, b"x")):
            fields = b'"%b":%b' % (field, nested)
            if field == b"x":
                fields += b',"messages":[{"role":"user","content":%b}]' % nested
            answer = await post(gateway, path, b'{"model":"m",%b}' % fields)
            assert answer.status_code in (200, 400), (depth, field, answer.text)
    assert replica.received
    assert no_bug(gateway)


# C073: numbers that JSON does not have, in answers.

NAN_WHOLE = (
    b'{"choices":[{"logprobs":{"token_logprobs":[-Infinity,NaN,Infinity]}}],'
    b'"usage":{"prompt_tokens":32,"completion_tokens":1,"x":NaN,'
    b'"prompt_tokens_details":{"cached_tokens":16}}}'
)
NAN_EVENTS = (
    b'data: {"choices":[{"logprobs":{"content":[{"logprob":-Infinity}]}}]}\n\n',
    b"data: " + NAN_WHOLE + b"\n\n",
    b"data: [DONE]\n\n",
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_c073_nan_in_an_answer_passes_and_is_understood(tokenizing, stream):
    """-Infinity and NaN reach the client as they are, and the usage beside them is still read."""

    async def script(conversation):
        if not stream:
            await conversation.answer(NAN_WHOLE)
            return
        await conversation.start_stream()
        for event in NAN_EVENTS:
            await conversation.chunk(event)
        await conversation.end()

    replica, gateway = await tokenizing(script)
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": stream}
    answer = await post(gateway, CHAT, body)
    assert answer.content == (b"".join(NAN_EVENTS) if stream else NAN_WHOLE)
    [line] = await _until_requests(gateway, 1)
    assert (line["status"], line["prompt_tokens"], line["cached_tokens"]) == (200, 32, 16)
    cached = f'warmroute_actual_cached_tokens_total{{replica="{replica.name}",rung="'
    assert await gateway.metric(cached) == 16
    assert no_bug(gateway)


BAD_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-5", '"16"', "[]", "{}", "true", "null"]
BAD_NUMBERS += ["1" + "0" * 400, "1" + "0" * 5000, "0.5", "[" * 5000]


@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens", "cached_tokens"])
async def test_c073_no_number_in_a_usage_breaks_the_books(tokenizing, field):
    """Usage that counts nothing sensible passes like any other; each request is counted once."""
    numbers = iter(BAD_NUMBERS)
    sent = []

    async def script(conversation):
        number = next(numbers)
        values = {"prompt_tokens": "4", "completion_tokens": "1", "cached_tokens": "2"}
        values[field] = number
        text = (
            '{"usage":{"prompt_tokens":%(prompt_tokens)s,"completion_tokens":%(completion_tokens)s,'
            '"prompt_tokens_details":{"cached_tokens":%(cached_tokens)s}}}'
        )
        sent.append((text % values).encode())
        await conversation.answer(sent[-1])

    _, gateway = await tokenizing(script)
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    for _ in BAD_NUMBERS:
        answer = await post(gateway, CHAT, body)
        assert (answer.status_code, answer.content) == (200, sent[-1])
    lines = await _until_requests(gateway, len(BAD_NUMBERS))
    assert {line["status"] for line in lines} == {200}
    assert (await gateway.admin.get("/metrics")).status_code == 200
    assert no_bug(gateway)


async def _until_requests(gateway, count):
    await until(lambda: len(gateway.requests()) == count, f"the log of {count} requests")
    return gateway.requests()
