"""Bodies of the Messages and Responses APIs become the chats that vLLM makes of them."""

import pytest

from gateway.config.engine import EngineConfig
from gateway.prompt.messages_api import messages_request
from gateway.prompt.problem import PromptProblem
from gateway.prompt.responses_api import responses_request

ENGINE = EngineConfig()


def of_messages(*messages, merge_system=False, **fields):
    body = {"messages": list(messages), "max_tokens": 5, **fields}
    return messages_request(body, ENGINE, merge_system=merge_system, disabled_effort="none")


def said(role, *blocks):
    return {"role": role, "content": list(blocks)}


def text(content):
    return {"type": "text", "text": content}


def test_a_tool_s_result_comes_before_what_the_user_says_with_it():
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("4"), text("2")]}
    request = of_messages(
        said("user", text("go")),
        said("assistant", {"type": "thinking", "thinking": "hm"}, call),
        said("user", text("and?"), result),
    )
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert request.messages == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "reasoning": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "4\n2"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("merge_system", "expected"),
    [
        (True, [("system", "abc"), ("user", "q")]),
        (False, [("system", "ab"), ("user", "q"), ("system", "c")]),
    ],
)
def test_late_system_messages_move_where_the_template_wants_them_first(merge_system, expected):
    late = {"role": "system", "content": "c"}
    request = of_messages(
        {"role": "user", "content": "q"},
        late,
        merge_system=merge_system,
        system=[text("a"), text("x-anthropic-billing-header: 1"), text("b")],
    )
    assert [(m["role"], m["content"]) for m in request.messages] == expected


def test_thinking_that_is_disabled_is_an_effort():
    request = of_messages(said("user", text("q")), thinking={"type": "disabled"})
    assert request.arguments["enable_thinking"] is False


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": None},
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"tool_choice": {"type": "tool"}},
        {"tools": [{"name": "f"}]},
        {"system": 5},
    ],
)
def test_messages_that_the_engine_refuses(fields):
    with pytest.raises(PromptProblem) as caught:
        of_messages(said("user", text("q")), **fields)
    assert caught.value.reason == "refused"


def of_responses(given, **fields):
    return responses_request({"input": given, **fields}, ENGINE)


def test_calls_and_reasoning_join_the_answer_before_them():
    request = of_responses(
        [
            {"role": "user", "content": "q"},
            {"type": "reasoning", "summary": [], "content": [{"text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
            {"role": "assistant", "content": "so"},
        ],
        instructions="be brief",
    )
    roles = [message["role"] for message in request.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert request.messages[2]["reasoning"] == "hm"
    assert [call["id"] for call in request.messages[2]["tool_calls"]] == ["c1", "c2"]


def test_a_body_is_left_as_it_is():
    item = {"role": "assistant", "content": []}
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    of_responses([item, call])
    assert item == {"role": "assistant", "content": []}


@pytest.mark.parametrize("status", ["in_progress", "completed"])
def test_an_answer_that_broke_off_is_continued(status):
    part = {"type": "output_text", "text": "so"}
    last = {"type": "message", "role": "assistant", "content": [part], "status": status}
    request = of_responses([{"role": "user", "content": "q"}, last])
    assert request.arguments["continue_final_message"] is (status == "in_progress")


def test_tools_of_all_kinds_are_shown_as_functions():
    inner = {"type": "function", "name": "f", "parameters": {}}
    request = of_responses(
        "q",
        tools=[
            {"type": "function", "name": "f", "parameters": {"b": 1}, "strict": None},
            {"type": "custom", "name": "c"},
            {"type": "namespace", "name": "ns", "tools": [inner]},
            {"type": "web_search"},
        ],
    )
    assert [tool["function"]["name"] for tool in request.tools] == ["f", "c", "ns__f"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"previous_response_id": "resp_1"}, "unsupported"),
        ({"prompt": {"id": "x"}}, "refused"),
        ({"input": None}, "refused"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "refused"),
        ({"tool_choice": "required"}, "refused"),
        ({"background": True, "store": False}, "refused"),
    ],
)
def test_responses_that_are_not_ours_to_render(fields, reason):
    with pytest.raises(PromptProblem) as caught:
        responses_request({"input": "q", **fields}, ENGINE)
    assert caught.value.reason == reason
