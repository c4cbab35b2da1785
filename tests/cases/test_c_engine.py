"""Area C, rendering: the gateway's token ids are the engine's, seen beside a simulated replica.

The simulator reads the rules of vLLM on its own (loadtests/simulator/messages.py); only the
tokenizer's files are shared.
"""

import json

import pytest

from gateway.config.load import config_from_flags
from gateway.prompt.body import BodyKind, read_body
from gateway.prompt.tokenizer import PromptTokenizer
from tests.support.simulators import running_replica

DEMO_MODEL = "loadtests/demo_model"
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a":5,"b":3}'},
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "8"}


def user(text):
    return {"role": "user", "content": text}


def called(**fields):
    return [user("5+3?"), {"role": "assistant", **fields}, RESULT, user("thanks")]


CONVERSATIONS = {
    "c060_null_content": called(content=None, tool_calls=[CALL]),
    "c060_missing_content": called(tool_calls=[CALL]),
    "c060_empty_content": called(content="", tool_calls=[CALL]),
    "c060_two_calls": called(content=None, tool_calls=[CALL, {**CALL, "id": "c2"}]),
    "c060_null_without_calls": [user("a"), {"role": "assistant", "content": None}, user("b")],
    "c060_null_among_parts": called(content=[{"type": "text", "text": None}], tool_calls=[CALL]),
    "c062_empty_calls": [user("hi"), {"role": "assistant", "content": "x", "tool_calls": []}],
    "c062_null_calls": [user("hi"), {"role": "assistant", "content": "x", "tool_calls": None}],
    "c062_broken_arguments": called(
        content="x", tool_calls=[{**CALL, "function": {"name": "add", "arguments": "{broken"}}]
    ),
    "c064_developer": [{"role": "developer", "content": "rhyme"}, user("capital?")],
    "c064_developer_and_system": [
        {"role": "system", "content": "be brief"},
        user("q"),
        {"role": "assistant", "content": "a"},
        {"role": "developer", "content": "rhyme"},
        user("capital?"),
    ],
}


@pytest.fixture(scope="module")
def simulator():
    with running_replica() as replica:
        yield replica


@pytest.fixture(scope="module")
def tokenizer():
    return PromptTokenizer.load(DEMO_MODEL)


def engines_ids(simulator, messages):
    answer = simulator.post("/tokenize", {"model": "demo-model", "messages": messages})
    assert answer.status_code == 200, answer.text
    return answer.json()["tokens"]


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_c060_ids_are_the_engines(simulator, tokenizer, name):
    """What the gateway hashes is what the engine runs, with null content and without."""
    messages = CONVERSATIONS[name]
    body = read_body(json.dumps({"model": "m", "messages": messages}).encode(), BodyKind.CHAT)
    ids = tokenizer.token_ids(body)
    assert ids == engines_ids(simulator, messages)
    assert "None" not in tokenizer.reference.decode(ids)


async def test_c060_the_whole_way_counts_the_engines_tokens(simulator, gateways):
    """Through a gateway the engine runs as many tokens as the gateway rendered."""
    messages = CONVERSATIONS["c060_null_content"]
    gateway = await gateways(config_from_flags([simulator.url], DEMO_MODEL))
    body = {"model": "demo-model", "messages": messages, "max_tokens": 1}
    answer = await gateway.client.post("/v1/chat/completions", json=body)
    explained = await gateway.admin.post("/admin/explain", json=body)
    rendered = explained.json()
    assert (rendered["num_prompt_tokens"], rendered["problem"]) == (
        answer.json()["usage"]["prompt_tokens"],
        None,
    )
