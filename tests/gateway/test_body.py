"""What is read in a request body."""

import json

import pytest

from gateway.errors import InvalidRequest
from gateway.prompt.body import HEAD_BYTES, BodyKind, read_body


def read(fields, kind=BodyKind.CHAT):
    return read_body(json.dumps(fields).encode(), kind)


USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("raw", "kind", "param"),
    [
        (b"", BodyKind.CHAT, None),
        (b"{", BodyKind.CHAT, None),
        (b"\xff\xfe", BodyKind.CHAT, None),
        (b"[" * 100_000, BodyKind.CHAT, None),
        (b"[]", BodyKind.CHAT, None),
        (b"null", BodyKind.CHAT, None),
        (b"{}", BodyKind.CHAT, "model"),
        (b'{"model": 5, "messages": [{}]}', BodyKind.CHAT, "model"),
        (b'{"model": "", "messages": [{}]}', BodyKind.CHAT, "model"),
        (b'{"model": "m"}', BodyKind.CHAT, "messages"),
        (b'{"model": "m", "messages": []}', BodyKind.CHAT, "messages"),
        (b'{"model": "m", "messages": "hi"}', BodyKind.CHAT, "messages"),
        (b'{"model": "m"}', BodyKind.COMPLETION, "prompt"),
        (b'{"model": "m", "prompt": null}', BodyKind.COMPLETION, "prompt"),
        (b"{}", BodyKind.OTHER, "model"),
    ],
)
def test_bodies_that_cannot_be_routed(raw, kind, param):
    with pytest.raises(InvalidRequest) as caught:
        read_body(raw, kind)
    assert caught.value.param == param
    error = json.loads(caught.value.body())["error"]
    assert (error["code"], error["type"], error["param"]) == (400, "BadRequestError", param)


def test_what_pythons_json_takes_is_taken_as_the_engine_takes_it():
    raw = b'{"model":"x","model":"m","messages":[{"role":"user","content":"\\ud800"}],"t":NaN}'
    body = read_body(raw, BodyKind.CHAT)
    assert body.model == "m", "the last of two equal keys"
    assert body.head()


@pytest.mark.parametrize("stream", [True, False, None, 1, "true"])
def test_only_true_is_a_stream(stream):
    assert read({"model": "m", "messages": USER, "stream": stream}).stream is (stream is True)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (BodyKind.COMPLETION, {}, False),
        (BodyKind.COMPLETION, {"logprobs": 1}, False),
        (BodyKind.COMPLETION, {"echo": True}, False),
        (BodyKind.COMPLETION, {"echo": True, "logprobs": 0}, True),
        (BodyKind.COMPLETION, {"prompt_logprobs": 0}, True),
        (BodyKind.CHAT, {"top_logprobs": 2, "logprobs": True}, False),
        (BodyKind.CHAT, {"echo": True}, True),
        (BodyKind.CHAT, {"echo": True, "top_logprobs": None}, False),
        (BodyKind.CHAT, {"prompt_logprobs": 1}, True),
    ],
)
def test_who_wants_logprobs_of_the_prompt_skips_the_engines_cache(kind, fields, expected):
    prompt = {"messages": USER} if kind is BodyKind.CHAT else {"prompt": "hi"}
    assert read({"model": "m", **prompt, **fields}, kind).skips_cache is expected


def test_the_head_does_not_depend_on_jsons_spelling():
    spaced = read_body(
        b'{ "messages":[{"content":"hi","role":"user"}], "model":"m"}', BodyKind.CHAT
    )
    assert spaced.head() == read({"model": "m", "messages": USER}).head()


def test_the_head_is_bounded_and_shared_by_prompts_that_begin_alike():
    long = "x" * 100_000
    one = read({"model": "m", "messages": [{"role": "system", "content": long}, *USER]})
    two = read({"model": "m", "messages": [{"role": "system", "content": long + "y"}]})
    assert one.head() == two.head()
    assert len(one.head()) == HEAD_BYTES


@pytest.mark.parametrize("prompt", ["text", ["text"], [1, 2], [[1, 2]], 5])
def test_every_form_of_completion_prompt_has_a_head(prompt):
    assert read({"model": "m", "prompt": prompt}, BodyKind.COMPLETION).head()
