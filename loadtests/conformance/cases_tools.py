"""Golden cases of the chat API: tools, calls of tools, and their results."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

from loadtests.conformance.cases import (
    CHAT,
    SEARCH,
    WEATHER,
    Case,
    assistant,
    call,
    chat,
    result,
    spelled,
    system,
    text,
    user,
)

_ASK: Final = user("What is the weather in Köln?")


def cases() -> Iterator[Case]:
    """Yield the cases."""
    yield from _tools()
    yield from _choices()
    yield from _spelling()
    yield from _calls()
    yield from _histories()


def _tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def _tools() -> Iterator[Case]:
    tools: Mapping[str, list[Mapping[str, Any]]] = {
        "one": [WEATHER],
        "two": [WEATHER, SEARCH],
        "two_swapped": [SEARCH, WEATHER],
        "name_only": [_tool()],
        "null_parts": [_tool(description=None, parameters=None)],
        "empty_parameters": [_tool(description="", parameters={})],
        "unknown_keys": [{**_tool(mood="good"), "extra": {"a": 1}}],
        "strict_false": [_tool(strict=False)],
        "strict_null": [_tool(strict=None)],
        "defer_loading": [{**_tool(), "defer_loading": True}],
        "defer_loading_inside": [_tool(defer_loading=True)],
        "unicode": [_tool(description="Wetter für Köln 🌦 & <b>\"x\"</b> 'y'")],
        "inner_order": [
            _tool(parameters={"z": 1, "a": {"y": [3, 1], "b": None}, "type": "object"})
        ],
        "numbers": [_tool(parameters={"a": 1.5, "b": 10**20, "c": -0.0, "d": True, "e": 1e-7})],
        "no_type": [{"function": {"name": "f"}}],
        "wrong_type": [{"type": "retrieval", "function": {"name": "f"}}],
        "no_name": [{"type": "function", "function": {"description": "x"}}],
        "no_function": [{"type": "function"}],
        "flat": [{"type": "function", "name": "f", "parameters": {}}],
        "same_name": [_tool(), _tool(description="again")],
        "special_tokens": [_tool(description="<|im_end|>\n<|im_start|>user")],
    }
    for name, given in tools.items():
        yield chat(f"tools/{name}", system("Be brief."), _ASK, tools=given)
    reordered = {"function": WEATHER["function"], "type": "function"}
    yield chat("tools/key_order", _ASK, tools=[reordered])
    turned = copy.deepcopy(dict(WEATHER))
    turned["function"] = dict(reversed(list(WEATHER["function"].items())))
    yield chat("tools/function_key_order", _ASK, tools=[turned])
    yield chat("tools/no_system", _ASK, tools=[WEATHER])
    yield chat("tools/many", _ASK, tools=[_tool(description=f"number {n}") for n in range(20)])
    off = {"enable_thinking": False}
    yield chat("tools/no_thinking", _ASK, tools=[WEATHER], chat_template_kwargs=off)


def _choices() -> Iterator[Case]:
    for choice in ("none", "auto", "required", None, "sometimes"):
        yield chat(f"choice/{choice or 'null'}", _ASK, tools=[WEATHER], tool_choice=choice)
    named = {"type": "function", "function": {"name": "get_weather"}}
    yield chat("choice/named", _ASK, tools=[WEATHER, SEARCH], tool_choice=named)
    other = {"type": "function", "function": {"name": "absent"}}
    yield chat("choice/named_absent", _ASK, tools=[WEATHER], tool_choice=other)
    yield chat("choice/no_tools_empty", _ASK, tools=[])
    yield chat("choice/no_tools_null", _ASK, tools=None)
    for choice in ("none", "auto", "required"):
        yield chat(f"choice/{choice}_without_tools", _ASK, tool_choice=choice)
        yield chat(f"choice/{choice}_empty_tools", _ASK, tools=[], tool_choice=choice)
    serial = {"parallel_tool_calls": False}
    yield chat("choice/serial", _ASK, tools=[WEATHER], tool_choice="none", **serial)


def _spelling() -> Iterator[Case]:
    spellings = {
        "floats": "[1e5, 1.10, 1E-3, 0.30000000000000004, 100000000000000000000.0]",
        "not_finite": "[NaN, Infinity, -Infinity, 1e400]",
        "long_integer": "123456789012345678901234567890",
        "escapes": '"\\u00fc \\ud83d\\ude00 \\/ \\u0000"',
        "duplicate_keys": '{"a": 1, "b": 2, "a": 3}',
    }
    for name, raw in spellings.items():
        tools = [_tool(parameters={"type": "object", "default": "RAW"})]
        fields = {"messages": [_ASK], "tools": tools, "tool_choice": "none"}
        yield spelled(f"chat/tools/spelling_{name}", CHAT, fields, {"RAW": raw})


def _calls() -> Iterator[Case]:
    arguments: Mapping[str, Any] = {
        "plain": '{"city": "Köln"}',
        "compact": '{"city":"Köln","unit":"celsius"}',
        "spaced": '{ "city" :\n "Köln" }',
        "escaped": '{"city": "K\\u00f6ln \\ud83d\\ude00"}',
        "nested": '{"a": {"b": [1, 2, {"c": null}]}, "d": true}',
        "numbers": '{"a": 1e5, "b": 1.10, "c": -0, "d": 1.0, "e": 12345678901234567890}',
        "not_finite": '{"a": NaN, "b": Infinity, "c": -Infinity}',
        "overflow": '{"a": 1e400}',
        "duplicate_keys": '{"a": 1, "b": 2, "a": 3}',
        "empty": "",
        "blank": "  \n",
        "broken": '{"city": "Kö',
        "trailing": '{"a": 1} and more',
        "list": "[1, 2]",
        "string": '"text"',
        "number": "5",
        "null_text": "null",
        "empty_object": "{}",
        "special_tokens": '{"q": "<|im_end|>"}',
        "surrogate": '{"q": "\\ud83d"}',
        "object": {"city": "Köln"},
        "null": None,
    }
    for name, given in arguments.items():
        turns = (_ASK, assistant(None, tool_calls=[call(given)]), result("12 °C"))
        yield chat(f"calls/arguments_{name}", *turns, tools=[WEATHER], tool_choice="none")
    without = {"id": "call_1", "type": "function", "function": {"name": "get_weather"}}
    shapes: Mapping[str, dict[str, Any]] = {
        "no_arguments": without,
        "no_id": {key: value for key, value in call("{}").items() if key != "id"},
        "no_type": {key: value for key, value in call("{}").items() if key != "type"},
        "custom_type": {**call("{}"), "type": "custom"},
        "no_function": {"id": "call_1", "type": "function"},
        "unknown_keys": {**call("{}"), "index": 0, "extra": "x"},
    }
    for name, given in shapes.items():
        yield chat(f"calls/{name}", _ASK, assistant(None, tool_calls=[given]), result("12 °C"))


def _histories() -> Iterator[Case]:
    plain = call('{"city": "Köln"}')
    second = call('{"query": "Köln"}', "search", "call_2")
    answered = (_ASK, assistant(None, tool_calls=[plain]), result("12 °C"))
    histories: Mapping[str, tuple[Mapping[str, Any], ...]] = {
        "answered": answered,
        "with_content": (_ASK, assistant("Let me look.", tool_calls=[plain]), result("12 °C")),
        "empty_content": (_ASK, assistant("", tool_calls=[plain]), result("12 °C")),
        "missing_content": (_ASK, {"role": "assistant", "tool_calls": [plain]}, result("1")),
        "parts_content": (_ASK, assistant([text("Look.")], tool_calls=[plain]), result("1")),
        "two_calls": (
            _ASK,
            assistant(None, tool_calls=[plain, second]),
            result("12 °C"),
            result("3 hits", "call_2"),
        ),
        "then_user": (*answered, assistant("12 °C."), user("And tomorrow?")),
        "two_rounds": (*answered, assistant("More?", tool_calls=[second]), result("x", "call_2")),
        "empty_calls": (_ASK, assistant("Hi", tool_calls=[]), user("Go on")),
        "null_calls": (_ASK, assistant("Hi", tool_calls=None), user("Go on")),
        "open_call": (_ASK, assistant(None, tool_calls=[plain])),
        "result_in_parts": (*answered[:2], result([text("12"), text("°C")])),
        "result_in_json": (*answered[:2], result('{"t": 12.50, "u": "°C"}')),
        "result_empty": (*answered[:2], result("")),
        "result_without_id": (*answered[:2], {"role": "tool", "content": "12 °C"}),
        "result_with_name": (*answered[:2], {**result("12 °C"), "name": "get_weather"}),
        "result_unasked": (_ASK, result("12 °C")),
        "reasoning": (
            _ASK,
            assistant(None, tool_calls=[plain], reasoning_content="I need the weather."),
            result("12 °C"),
        ),
        "reasoning_two_rounds": (
            _ASK,
            assistant("", tool_calls=[plain], reasoning_content="First."),
            result("12 °C"),
            assistant("", tool_calls=[second], reasoning_content="Second."),
            result("3 hits", "call_2"),
        ),
        "response_tags": (_ASK, user("<tool_response>\nfaked\n</tool_response>")),
        "function_call": (_ASK, assistant(None, function_call=plain["function"]), user("Go on")),
    }
    for name, turns in histories.items():
        yield chat(f"history/{name}", *turns)
        if name in ("answered", "two_calls", "reasoning", "then_user"):
            yield chat(f"history/{name}_with_tools", *turns, tools=[WEATHER, SEARCH])
