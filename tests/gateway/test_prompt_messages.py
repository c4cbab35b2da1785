"""From the messages and tools of a chat to what its template gets, as vLLM builds it."""

import json

import pytest

from gateway.config.engine import EngineConfig
from gateway.prompt.chat import chat_request, template_arguments
from gateway.prompt.problem import PromptProblem
from gateway.prompt.render import conversation, fold_developer
from gateway.prompt.tools import shown_tools

ENGINE = EngineConfig()


def user(content):
    return {"role": "user", "content": content}


def text(content, **extra):
    return {"type": "text", "text": content, **extra}


def rendered(*messages, keep_parts=False):
    return conversation(messages, keep_parts=keep_parts).messages


@pytest.mark.parametrize(
    ("message", "keep_parts", "expected", "why"),
    [
        (user("hi"), False, user("hi"), "text as it is"),
        (user([text("a"), "b"]), False, user("a\nb"), "parts are joined"),
        (user([text(""), text("b")]), False, user("b"), "empty parts are dropped first"),
        (user([text(None), text("b")]), False, user("b"), "a null text is left out"),
        (user("hi"), True, user([text("hi")]), "a template that iterates"),
        (user([text("a", x=1)]), True, user([text("a", x=1)]), "unknown fields of parts are kept"),
        (
            {"role": "assistant"},
            False,
            {"role": "assistant", "content": ""},
            "content that is missing",
        ),
        ({"role": "assistant"}, True, {"role": "assistant", "content": []}, "no parts"),
        (user([{"type": "poem", "poem": "x"}]), False, user(""), "parts that fit no type"),
        (
            {"role": "system", "content": "x-anthropic-billing-header: 1\nrest"},
            False,
            {"role": "system", "content": "rest"},
            "a line that changes with every request",
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": []},
            False,
            {"role": "assistant", "content": ""},
            "an empty list of calls is dropped",
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": "r", "reasoning": None},
            False,
            {"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"},
            "reasoning goes by both names",
        ),
        (
            {"role": "tool", "content": "42", "tool_call_id": "c1", "extra": 1},
            False,
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
            "unknown fields are dropped",
        ),
        (
            {"role": "tool", "content": [text("a"), text("")], "tool_call_id": "c1"},
            True,
            {"role": "tool", "content": "a\n", "tool_call_id": "c1"},
            "a tool's parts are joined even there",
        ),
    ],
)
def test_messages(message, keep_parts, expected, why):
    assert rendered(message, keep_parts=keep_parts) == [expected], why


def call(arguments="{}", **extra):
    return {
        "type": "function",
        "id": "1",
        "function": {"name": "f", "arguments": arguments},
        **extra,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": 1}', {"a": 1}), ("", {}), ("{broken", {}), ("[1]", {}), ("  ", {})],
)
def test_tool_call_arguments_are_parsed(arguments, expected):
    [message] = rendered({"role": "assistant", "tool_calls": [call(arguments)]})
    assert message["tool_calls"][0]["function"]["arguments"] == expected


def test_tool_calls_have_their_fields_in_the_engine_s_order():
    [message] = rendered({"role": "assistant", "tool_calls": [call(index=0)]})
    assert json.dumps(message["tool_calls"][0]) == (
        '{"id": "1", "function": {"arguments": {}, "name": "f"}, "type": "function", "index": 0}'
    )


@pytest.mark.parametrize(
    "message",
    [
        "text",
        {"content": "no role"},
        user(None),
        user(5),
        {"role": "user", "content": "x", "name": None},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "assistant", "tool_calls": [call({})]},
        {"role": "assistant", "tool_calls": [call(id=None)]},
        user([text("x", uuid="1")]),
    ],
)
def test_messages_that_the_engine_refuses(message):
    with pytest.raises(PromptProblem) as caught:
        rendered(message)
    assert caught.value.reason == "refused"


def test_what_stands_in_for_media_differs_in_nothing_else():
    image = {"type": "image_url", "image_url": {"url": "x"}}
    chat = conversation([user("a"), user([text("b"), image, text("c")])], keep_parts=True)
    assert chat.messages[1]["content"] == [text("b"), {"type": "image"}, text("c")]
    assert chat.marked[0] == chat.messages[0]
    assert chat.marked[1]["content"][:1] == [text("b")]
    assert conversation([user("a")], keep_parts=True).marked is None


def test_developer_becomes_one_system_message_in_front():
    messages = [
        {"role": "system", "content": "a"},
        user("q"),
        {"role": "developer", "content": "b", "tools": None},
    ]
    folded = fold_developer(messages)
    assert folded == [{"role": "system", "content": "a\n\nb"}, user("q")]
    assert fold_developer(folded) == folded


TOOL = {"function": {"parameters": {"z": 1, "a": 2}, "name": "f", "unknown": 1}, "type": "function"}


def test_tools_are_dumped_as_the_engine_dumps_them():
    [tool] = shown_tools({"tools": [TOOL]}, ENGINE)
    assert json.dumps(tool) == (
        '{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": {"z": 1, "a": 2}}}'
    )


@pytest.mark.parametrize(
    ("choice", "flags", "is_shown"),
    [
        ("none", {}, True),
        ("none", {"exclude_tools_when_tool_choice_none": True}, False),
        ("none", {"tool_parser": False}, True),
        (None, {"tool_parser": False}, True),
        ("required", {}, True),
    ],
)
def test_flags_of_the_engine_decide_about_tools(choice, flags, is_shown):
    tools = shown_tools({"tools": [TOOL], "tool_choice": choice}, EngineConfig(**flags))
    assert (tools is not None) is is_shown


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({"tools": []}, {}),
        ({"tools": [TOOL]}, {"tool_parser": False}),
        ({"tool_choice": "auto"}, {}),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, {}),
        ({"tools": [{"type": "function", "function": {}}]}, {}),
    ],
)
def test_tools_that_the_engine_refuses(fields, flags):
    with pytest.raises(PromptProblem):
        shown_tools(fields, EngineConfig(**flags))


def arguments(fields, **flags):
    engine = EngineConfig(**flags)
    return template_arguments(chat_request({"messages": [user("x")], **fields}, engine), engine)


TURN = {"add_generation_prompt": True, "continue_final_message": False}


@pytest.mark.parametrize(
    ("fields", "expected", "why"),
    [
        ({}, {"enable_thinking": False}, "the engine's default"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}, "own"),
        ({"chat_template_kwargs": {"enable_thinking": None}}, {"enable_thinking": False}, "null"),
        (
            {"reasoning_effort": "low"},
            {"enable_thinking": True, "reasoning_effort": "low"},
            "an effort switches it on",
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True, "reasoning_effort": "none"},
            "the client's own word wins",
        ),
        (
            {"chat_template_kwargs": {"add_generation_prompt": False}},
            {"enable_thinking": False},
            "the field beats the argument",
        ),
    ],
)
def test_template_arguments(fields, expected, why):
    given = {"default_chat_template_kwargs": {"enable_thinking": False}}
    assert arguments(fields, **given) == {**TURN, **expected}, why


@pytest.mark.parametrize(
    "fields",
    [
        {"continue_final_message": True},
        {"continue_final_message": "false", "add_generation_prompt": "false"},
        {"reasoning_effort": "extreme"},
        {"chat_template": "{{ x }}"},
        {"chat_template_kwargs": {"chat_template": "{{ x }}"}},
        {"chat_template_kwargs": []},
        {"documents": ["x"]},
        {"cache_salt": ""},
        {"stream_options": {}, "n": 0},
        {"temperature": -1},
        {"max_tokens": 0},
    ],
)
def test_fields_that_the_engine_refuses(fields):
    with pytest.raises(PromptProblem) as caught:
        arguments(fields)
    assert caught.value.reason == "refused"
