"""From a body of OpenAI's Responses API to the chat that vLLM makes of it. Pure.

Source: vLLM 0.32, entrypoints/openai/responses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.config.engine import EngineConfig
from gateway.prompt.chat import (
    ChatRequest,
    Lengths,
    Truncation,
    check_salt,
    effort_arguments,
    own_arguments,
)
from gateway.prompt.coercion import as_int
from gateway.prompt.problem import REFUSED, PromptProblem
from gateway.prompt.sampling import check_sampling
from gateway.prompt.tools import dump_function

# Tuples: what a client sends in their place may be a list, which no set can be asked for.
_ROLES = ("user", "assistant", "system", "developer")
_UNFINISHED = ("in_progress", "incomplete")
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
# A tool that takes free text is shown to the model as a function of one text, in these words.
_FREE_TEXT: Mapping[str, Any] = MappingProxyType(
    {
        "type": "object",
        "properties": {
            "input": {"type": "string", "description": "The freeform text payload for this tool."}
        },
        "required": ["input"],
        "additionalProperties": False,
    }
)


def responses_request(body: Mapping[str, Any], engine: EngineConfig) -> ChatRequest:
    """Read a body of the Responses API.

    Args:
        body: Its fields.
        engine: What the engines' command line says.

    Raises:
        PromptProblem: `refused`, or `unsupported`: most of all where it goes on from an answer
            that only a replica has.
    """
    if body.get("previous_response_id") is not None:
        raise PromptProblem("unsupported")
    unstored = body.get("background") and not body.get("store", True)
    if body.get("prompt") is not None or unstored:
        raise PromptProblem(REFUSED)
    check_salt(body)
    check_sampling(body, "max_output_tokens")
    given, own = body.get("input"), own_arguments(body, engine)
    if not isinstance(given, str | list):
        raise PromptProblem(REFUSED)
    go_on = _goes_on(given)
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    max_output_tokens = body.get("max_output_tokens")
    truncates = body.get("truncation", "disabled") != "disabled"
    return ChatRequest(
        messages=[*_instructions(body), *_messages(given)],
        tools=_tools(body, engine),
        own_arguments=own,
        arguments={
            "add_generation_prompt": not go_on,
            "continue_final_message": go_on,
            **effort_arguments(effort, own),
        },
        add_special_tokens=True,  # unlike chats: this API leaves the engine's default
        lengths=Lengths(
            0 if max_output_tokens is None else as_int(max_output_tokens),
            Truncation(-1, None) if truncates else None,
        ),
        as_chat=False,
    )


def _goes_on(given: str | list[Any]) -> bool:
    """Return whether the last item is an answer that broke off."""
    last = given[-1] if isinstance(given, list) and given else None
    if not isinstance(last, dict):
        return False
    is_text = last.get("type", "message") in ("message", "reasoning")
    return is_text and last.get("status") in _UNFINISHED


def _instructions(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    instructions = body.get("instructions")
    if not isinstance(instructions, str | None):
        raise PromptProblem(REFUSED)
    if instructions:
        yield {"role": "system", "content": instructions}


def _messages(given: str | list[Any]) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for item in given:
        if not isinstance(item, dict):
            raise PromptProblem(REFUSED)
        addition = _addition(item)
        last = messages[-1] if messages else None
        if addition is None:
            messages.append(_message(item))
        elif last is None or last.get("role") != "assistant" or not _join(last, addition):
            messages.append({"role": "assistant", **addition})
    return messages


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("type") in _OUTPUTS:
        return {
            "role": "tool",
            "content": item.get("output"),
            "tool_call_id": item.get("call_id"),
        }
    if item.get("role") not in _ROLES:
        raise PromptProblem(REFUSED)
    return dict(item)


def _join(message: dict[str, Any], addition: Mapping[str, Any]) -> bool:
    """Add to the assistant's message before, and return whether that was possible."""
    [(key, new)] = addition.items()
    if key == "tool_calls":
        message[key] = [*(message.get(key) or []), *new]
        return True
    if message.get(key) is not None:
        return False
    message[key] = new
    return True


def _addition(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what an item adds to the assistant's message, under its one key; None for others."""
    kind = item.get("type")
    if kind in _CALLS:
        return {"tool_calls": [_call(item)]}
    if kind == "reasoning":
        return {"reasoning": _reasoning(item)}
    if item.get("role") == "assistant":
        text = _answer_text(item)
        return None if text is None else {"content": text}
    return None


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = item.get("name"), item.get("arguments")
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
    elif item.get("namespace"):
        name = f"{item['namespace']}__{name}"
    function = {"name": name, "arguments": arguments}
    return {"id": item.get("call_id"), "function": function, "type": "function"}


def _reasoning(item: Mapping[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise PromptProblem(REFUSED)
    for key in ("content", "summary"):
        texts = item.get(key)
        if isinstance(texts, list) and texts:
            return _first_text(texts)
    return ""


def _answer_text(item: Mapping[str, Any]) -> str | None:
    content, is_typed = item.get("content"), item.get("type") == "message"
    if isinstance(content, str):
        if is_typed and {"id", "status"} <= item.keys():
            raise PromptProblem(REFUSED)  # then it has to be a list of parts
        return content
    if not content and is_typed:
        raise PromptProblem(REFUSED)
    if isinstance(content, list) and not is_typed:
        _check_input_parts(content)
    return _first_text(content) if isinstance(content, list) and content else None


def _check_input_parts(parts: Sequence[Any]) -> None:
    """Check the parts of an answer that does not say that it is one: only inputs are taken."""
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(kind, str) and kind.startswith("input_") for kind in kinds):
        raise PromptProblem(REFUSED)


def _first_text(parts: Sequence[Any]) -> str:
    text = parts[0].get("text") if isinstance(parts[0], dict) else None
    if not isinstance(text, str):
        raise PromptProblem(REFUSED)
    return text


def _tools(body: Mapping[str, Any], engine: EngineConfig) -> list[dict[str, Any]] | None:
    given, choice = body.get("tools", []), body.get("tool_choice", "auto")
    if not isinstance(given, list):
        raise PromptProblem(REFUSED)
    if not given:
        if choice not in ("auto", "none"):
            raise PromptProblem(REFUSED)
        return None
    if choice == "none" and engine.exclude_tools_when_tool_choice_none:
        return None
    functions = [function for tool in given for function in _functions(tool)]
    return [{"type": "function", "function": dump_function(f)} for f in functions]


def _functions(tool: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the functions that the model is shown of a tool; none of a kind that it cannot call."""
    if not isinstance(tool, dict):
        raise PromptProblem(REFUSED)
    kind = tool.get("type")
    if kind == "function":
        yield tool
    elif kind == "custom":
        named = {key: tool.get(key) for key in ("name", "description")}
        yield {**named, "parameters": dict(_FREE_TEXT)}
    elif kind == "namespace":
        inner = tool.get("tools")
        for function in inner if isinstance(inner, list) else ():
            if isinstance(function, dict) and function.get("type") == "function":
                yield {**function, "name": f"{tool.get('name')}__{function.get('name')}"}
