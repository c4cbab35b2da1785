"""Golden cases of the completions, Responses and Messages APIs."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from loadtests.conformance.cases import (
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    WEATHER,
    Case,
    assistant,
    case,
    system,
    text,
    user,
)
from loadtests.conformance.cases_chat import TOO_LONG, prose

_PIXEL: Final = "iVBORw0KGgo="


def cases() -> Iterator[Case]:
    """Yield the cases."""
    yield from _completions()
    yield from _completion_fields()
    yield from _responses()
    yield from _response_items()
    yield from _messages()
    yield from _message_fields()


def _completions() -> Iterator[Case]:
    prompts: Mapping[str, Any] = {
        "text": "Once upon a time",
        "empty": "",
        "space": " ",
        "unicode": "Übermäßig 缓存 🚀 e\u0301",
        "special_tokens": "<|im_start|>user\nHi<|im_end|>\n",
        "surrogate": "half \ud83d",
        "long": prose(21, 1000),
        "texts": ["Once upon", "a time"],
        "one_text": ["Once upon"],
        "texts_one_empty": ["Once", ""],
        "ids": [11, 22, 33],
        "one_id": [11],
        "id_lists": [[11, 22], [33]],
        "id_list_one_empty": [[11], []],
        "nothing": [],
        "empty_list": [[]],
        "floats": [11.0, 22.0],
        "fractions": [11.5, 22.0],
        "bools": [True, 22],
        "id_too_large": [11, 999_999],
        "id_negative": [11, -1],
        "mixed": ["text", [11]],
        "mixed_flat": ["text", 11],
        "number": 11,
        "null": None,
        "object": {"text": "x"},
    }
    for name, prompt in prompts.items():
        yield case(f"completions/{name}", COMPLETIONS, {"prompt": prompt})
    yield case("completions/missing", COMPLETIONS, {})


def _completion_fields() -> Iterator[Case]:
    story = {"prompt": "Once upon a time there was a cache"}
    ids = {"prompt": [11, 22, 33, 44, 55]}
    fields: Mapping[str, dict[str, Any]] = {
        "special_tokens_off": {**story, "add_special_tokens": False},
        "special_tokens_on": {**story, "add_special_tokens": True},
        "keep_3": {**story, "truncate_prompt_tokens": 3},
        "keep_3_ids": {**ids, "truncate_prompt_tokens": 3},
        "keep_3_right": {**ids, "truncate_prompt_tokens": 3, "truncation_side": "right"},
        "keep_3_left": {**story, "truncate_prompt_tokens": 3, "truncation_side": "left"},
        "keep_all": {**ids, "truncate_prompt_tokens": -1},
        "echo": {**story, "echo": True},
        "suffix": {**story, "suffix": " and an end"},
        "salt": {**story, "cache_salt": "tenant-a"},
        "ids_elsewhere": {**story, "kv_transfer_params": {"prompt_token_ids": [7, 8, 9]}},
        "n_2": {**story, "n": 2},
        "too_long": {"prompt": TOO_LONG},
        "too_long_cut": {"prompt": TOO_LONG, "truncate_prompt_tokens": 100},
        "embeds_alone": {"prompt_embeds": "AAAA"},
        "max_tokens_0": {**story, "max_tokens": 0},
    }
    for name, given in fields.items():
        yield case(f"completions/{name}", COMPLETIONS, given)


def _responses() -> Iterator[Case]:
    inputs: Mapping[str, Any] = {
        "text": "Hello",
        "empty": "",
        "unicode": "Grüße, 世界 🚀",
        "nothing": [],
        "message": [user("Hello")],
        "messages": [system("Be brief."), user("Hello"), assistant("Hi!"), user("And?")],
        "developer": [{"role": "developer", "content": "Use metric units."}, user("Hello")],
        "system_late": [user("Hello"), system("Late."), user("Go on")],
        "typed": [{"type": "message", **user([{"type": "input_text", "text": "Hello"}])}],
        "parts": [
            user([{"type": "input_text", "text": "Hello"}, {"type": "input_text", "text": "you"}])
        ],
        "long": prose(31, 500),
    }
    for name, given in inputs.items():
        yield case(f"responses/input_{name}", RESPONSES, {"input": given})
    fields: Mapping[str, dict[str, Any]] = {
        "instructions": {"instructions": "Be brief."},
        "instructions_empty": {"instructions": ""},
        "effort_none": {"reasoning": {"effort": "none"}},
        "effort_low": {"reasoning": {"effort": "low"}},
        "effort_high": {"reasoning": {"effort": "high", "summary": "auto"}},
        "thinking_off": {"chat_template_kwargs": {"enable_thinking": False}},
        "salt": {"cache_salt": "tenant-a"},
        "truncation": {"truncation": "auto"},
        "unknown_previous": {"previous_response_id": "resp_absent"},
        "background": {"background": True},
        "text_format": {"text": {"format": {"type": "json_object"}}},
        "metadata": {"metadata": {"a": "b"}, "user": "u-1", "parallel_tool_calls": False},
    }
    for name, given in fields.items():
        yield case(f"responses/{name}", RESPONSES, {"input": "What is 2+2?", **given})
    both = {"instructions": "Be brief.", "input": [system("Be polite."), user("Hello")]}
    yield case("responses/instructions_and_system", RESPONSES, both)
    yield case("responses/missing", RESPONSES, {})


def _response_items() -> Iterator[Case]:
    tool = {"type": "function", **WEATHER["function"]}
    arguments = '{"city":"Köln"}'
    called = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": arguments,
    }
    output = {"type": "function_call_output", "call_id": "call_1", "output": "12 °C"}
    said = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
    }
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "I need the weather."}],
    }
    summary = {**thought, "content": None, "summary": [{"type": "summary_text", "text": "Hm."}]}
    ask = user("What is the weather in Köln?")
    histories: Mapping[str, list[Any]] = {
        "call": [ask, called],
        "answered": [ask, called, output],
        "said_and_called": [ask, said, called, output],
        "thought": [ask, thought, called, output],
        "thought_and_said": [ask, thought, said, user("And?")],
        "summary": [ask, summary, called, output],
        "output_in_parts": [
            ask,
            called,
            {**output, "output": [{"type": "input_text", "text": "12 °C"}]},
        ],
        "two_calls": [ask, called, {**called, "id": "fc_2", "call_id": "call_2"}, output],
        "said": [ask, said, user("And?")],
        "ends_said": [ask, said],
    }
    for name, given in histories.items():
        yield case(f"responses/items_{name}", RESPONSES, {"input": given})
    for choice in ("auto", "none", "required"):
        fields = {"input": [ask], "tools": [tool], "tool_choice": choice}
        yield case(f"responses/tools_{choice}", RESPONSES, fields)
    fields = {"input": [ask, thought, called, output], "tools": [tool]}
    yield case("responses/tools_answered", RESPONSES, fields)
    bare = {"type": "function", "name": "f", "parameters": None, "strict": None}
    yield case("responses/tools_bare", RESPONSES, {"input": [ask], "tools": [bare]})


def _messages() -> Iterator[Case]:
    ask = user("What is the weather in Köln?")
    used = {"type": "tool_use", "id": "tu_1", "name": "get_weather", "input": {"city": "Köln"}}
    answered = {"type": "tool_result", "tool_use_id": "tu_1", "content": "12 °C"}
    thinking = {"type": "thinking", "thinking": "I need the weather.", "signature": "s"}
    image = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
    histories: Mapping[str, list[Any]] = {
        "text": [user("Hello")],
        "empty": [user("")],
        "unicode": [user("Grüße, 世界 🚀")],
        "turns": [user("Hello"), assistant("Hi!"), user("And?")],
        "prefill": [user("Hello"), assistant("Hi, how")],
        "blocks": [user([text("Hello"), text("world")])],
        "block": [user([text("Hello")])],
        "empty_block": [user([text(""), text("Hello")])],
        "no_blocks": [user([])],
        "cache_control": [user([{**text("Hello"), "cache_control": {"type": "ephemeral"}}])],
        "used": [ask, assistant([used]), user([answered])],
        "said_and_used": [ask, assistant([text("Look."), used]), user([answered])],
        "used_empty": [ask, assistant([{**used, "input": {}}]), user([answered])],
        "result_blocks": [
            ask,
            assistant([used]),
            user([{**answered, "content": [text("12"), text("°C")]}]),
        ],
        "result_error": [ask, assistant([used]), user([{**answered, "is_error": True}])],
        "result_empty": [
            ask,
            assistant([used]),
            user([{"type": "tool_result", "tool_use_id": "tu_1"}]),
        ],
        "result_and_text": [ask, assistant([used]), user([answered, text("And tomorrow?")])],
        "text_and_result": [ask, assistant([used]), user([text("Here:"), answered])],
        "two_results": [
            ask,
            assistant([used, {**used, "id": "tu_2"}]),
            user([answered, {**answered, "tool_use_id": "tu_2"}]),
        ],
        "thinking": [ask, assistant([thinking, used]), user([answered])],
        "thinking_and_text": [ask, assistant([thinking, text("12 °C")]), user("And?")],
        "redacted": [ask, assistant([{"type": "redacted_thinking", "data": "x"}]), user("And?")],
        "image": [user([text("What is this?"), {"type": "image", "source": image}])],
        "system_role": [system("Be brief."), user("Hello")],
        "none": [],
    }
    for name, given in histories.items():
        yield case(f"messages/{name}", MESSAGES, {"messages": given})


def _message_fields() -> Iterator[Case]:
    function = WEATHER["function"]
    schema = {"input_schema": function["parameters"], "description": function["description"]}
    tool = {"name": "get_weather", **schema}
    budget = {"type": "enabled", "budget_tokens": 1024}
    billing = text("x-anthropic-billing-header: cc_version=1.2.3")
    fields: Mapping[str, dict[str, Any]] = {
        "system": {"system": "Be brief."},
        "system_empty": {"system": ""},
        "system_blocks": {"system": [text("Be brief."), text("Be polite.")]},
        "system_billing": {"system": [billing, text("Be brief.")]},
        "system_billing_text": {"system": f"{billing['text']}\nBe brief."},
        "thinking_on": {"thinking": budget, "max_tokens": 1025},
        "thinking_on_short": {"thinking": budget},
        "thinking_off": {"thinking": {"type": "disabled"}},
        "thinking_adaptive": {"thinking": {"type": "adaptive"}},
        "effort_low": {"output_config": {"effort": "low"}},
        "effort_high": {"output_config": {"effort": "high"}},
        "kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
        "salt": {"cache_salt": "tenant-a"},
        "tools": {"tools": [tool]},
        "tools_bare": {"tools": [{"name": "f", "input_schema": {}}]},
        "tools_none": {"tools": [tool], "tool_choice": {"type": "none"}},
        "tools_any": {"tools": [tool], "tool_choice": {"type": "any"}},
        "tools_named": {"tools": [tool], "tool_choice": {"type": "tool", "name": "get_weather"}},
        "tools_empty": {"tools": []},
        "tools_typed": {"tools": [{"type": "custom", **tool}]},
        "tools_server": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "no_max_tokens": {"max_tokens": None},
        "metadata": {"metadata": {"user_id": "u-1"}, "stop_sequences": ["x"]},
    }
    for name, given in fields.items():
        yield case(f"messages/{name}", MESSAGES, {"messages": [user("What is 2+2?")], **given})
