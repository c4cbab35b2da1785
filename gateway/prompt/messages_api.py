"""From a body of Anthropic's Messages API to the chat that vLLM makes of it. Pure.

Source: vLLM 0.32, entrypoints/anthropic.
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
    check_salt,
    effort_arguments,
    own_arguments,
)
from gateway.prompt.coercion import as_int
from gateway.prompt.problem import REFUSED, PromptProblem
from gateway.prompt.sampling import check_sampling
from gateway.prompt.tools import dump_function

MIN_THINKING_TOKENS = 1024
"""Least `budget_tokens` that the API takes."""

# Tuples: what a client sends in their place may be a list, which no set can be asked for.
_ROLES = ("user", "assistant", "system")
_BILLING_HEADER = "x-anthropic-billing-header"
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_THINKING = ("enabled", "disabled", "adaptive")
# Blocks that say nothing to the model, or only inside a tool's result.
_SILENT = ("redacted_thinking", "tool_reference")
_KINDS = (*_SILENT, "text", "image", "thinking", "tool_use", "tool_result")
_PICTURE: Mapping[str, Any] = MappingProxyType({"type": "image_url", "image_url": {"url": ""}})
_CHANGES = ("tool_addition", "tool_removal")


def messages_request(
    body: Mapping[str, Any], engine: EngineConfig, *, merge_system: bool, disabled_effort: str
) -> ChatRequest:
    """Read a body of the Messages API.

    Args:
        body: Its fields.
        engine: What the engines' command line says.
        merge_system: The template takes a system message only in front, so later ones join it.
        disabled_effort: The reasoning effort that disabled thinking stands for.

    Raises:
        PromptProblem: `refused`, or `unsupported`.
    """
    messages = [_checked(message) for message in body["messages"]]
    max_tokens = as_int(body.get("max_tokens"))
    if max_tokens <= 0:
        raise PromptProblem(REFUSED)
    check_salt(body)
    check_sampling(body)
    own = own_arguments(body, engine)
    return ChatRequest(
        messages=[
            *_system(body.get("system"), messages, merge_system=merge_system),
            *_chat_messages(messages, merge_system=merge_system),
        ],
        tools=_tools(body, engine),
        own_arguments=own,
        arguments={
            "add_generation_prompt": True,
            "continue_final_message": False,
            **effort_arguments(_effort(body, engine, disabled_effort), own),
        },
        lengths=Lengths(max_tokens),
    )


def _checked(message: Any) -> Mapping[str, Any]:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise PromptProblem(REFUSED)
    content = message.get("content")
    if isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise PromptProblem(REFUSED)
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in _CHANGES:
            raise PromptProblem("unsupported")  # tools that come and go in the conversation
        if kind not in _KINDS:
            raise PromptProblem(REFUSED)
        _check_texts(block, "text", "thinking", "id", "tool_use_id", "name")
    return message


def _check_texts(block: Mapping[str, Any], *keys: str) -> None:
    if not all(isinstance(block.get(key), str | None) for key in keys):
        raise PromptProblem(REFUSED)


def _system(
    system: Any, messages: Sequence[Mapping[str, Any]], *, merge_system: bool
) -> Iterator[dict[str, Any]]:
    """Yield the one system message in front, where there is any text for it."""
    texts: list[str | None] = []
    if isinstance(system, str):
        texts = [system]  # a header of Claude Code's is dropped when the chat is rendered
    elif isinstance(system, list):
        texts = [_block_text(block) for block in system]
    elif system is not None:
        raise PromptProblem(REFUSED)
    if merge_system:
        texts += [_system_text(message) for message in messages if message["role"] == "system"]
    found = [text for text in texts if text]
    if found:
        yield {"role": "system", "content": "".join(found)}


def _block_text(block: Any) -> str | None:
    if not isinstance(block, dict):
        raise PromptProblem(REFUSED)
    text = block.get("text")
    if block.get("type") != "text" or not text:
        return None
    if not isinstance(text, str):
        raise PromptProblem(REFUSED)
    return None if text.startswith(_BILLING_HEADER) else text


def _system_text(message: Mapping[str, Any]) -> str | None:
    content = message["content"]
    if isinstance(content, str):
        return None if content.startswith(_BILLING_HEADER) else content
    return "".join(text for text in map(_block_text, content) if text)


def _chat_messages(
    messages: Sequence[Mapping[str, Any]], *, merge_system: bool
) -> Iterator[dict[str, Any]]:
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "system":
            text = None if merge_system else _system_text(message)
            if text:
                yield {"role": "system", "content": text}
        elif isinstance(content, str):
            yield {"role": role, "content": content}
        else:
            yield from _of_blocks(role, content)


def _of_blocks(role: str, blocks: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the results of tools, each a message of its own, and then what else there is."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        kind = block["type"]
        if kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result":
            yield from _results(role, block)
        elif kind == "thinking":
            thoughts += [block["thinking"]] if block.get("thinking") is not None else []
        else:
            parts += _part(kind, block)
    message: dict[str, Any] = {"role": role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        only_text = len(parts) == 1 and parts[0]["type"] == "text"
        message["content"] = parts[0]["text"] if only_text else parts
    if role != "user" or parts:
        yield message


def _part(kind: str, block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a block as a part of a chat's message, where it is one with something in it."""
    if kind == "text":
        return [{"type": "text", "text": block["text"]}] if block.get("text") else []
    if kind == "image":
        # What the picture is does not matter: nothing is known from here on.
        return [dict(_PICTURE)] if block.get("source") else []
    return []  # silent ones


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict | None):
        raise PromptProblem(REFUSED)
    if not block.get("id"):
        raise PromptProblem("unsupported")  # the engine makes one of the time
    function = {"name": block.get("name") or "", "arguments": json.dumps(given or {})}
    return {"id": block["id"], "type": "function", "function": function}


def _results(role: str, block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if role != "user":
        raise PromptProblem("unsupported")  # the engine shows such a result as Python prints it
    content, call_id = block.get("content"), block.get("tool_use_id") or ""
    if not isinstance(content, str | list | None):
        raise PromptProblem(REFUSED)
    text, images, references = content or "", [], []
    if isinstance(content, list):
        if not all(isinstance(item, dict) for item in content):
            raise PromptProblem(REFUSED)
        text = "\n".join(_result_text(item) for item in content if item.get("type") == "text")
        images = [item for item in content if item.get("type") == "image"]
        references = [item for item in content if item.get("type") == "tool_reference"]
    yield {"role": "tool", "tool_call_id": call_id, "content": text}
    if images:
        yield {"role": "user", "content": [dict(_PICTURE) for _ in images]}
    names = [item.get("tool_name") or item.get("name") for item in references]
    if any(names):
        parts = [{"type": "tool_reference", "name": name} for name in names if name]
        yield {"role": "tool", "tool_call_id": call_id, "content": parts}


def _result_text(item: Mapping[str, Any]) -> str:
    text = item.get("text", "")
    if not isinstance(text, str):
        raise PromptProblem(REFUSED)
    return text


def _tools(body: Mapping[str, Any], engine: EngineConfig) -> list[dict[str, Any]] | None:
    given, choice = body.get("tools"), body.get("tool_choice")
    if not isinstance(given, list | None) or not isinstance(choice, dict | None):
        raise PromptProblem(REFUSED)
    kind = None if choice is None else choice.get("type")
    if choice is not None and kind not in ("auto", "any", "tool", "none"):
        raise PromptProblem(REFUSED)
    if kind == "tool" and (choice is None or not isinstance(choice.get("name"), str)):
        raise PromptProblem(REFUSED)
    wants_tools = kind not in (None, "none") or (kind is None and given is not None)
    if wants_tools and not engine.tool_parser:
        raise PromptProblem(REFUSED)
    if given is None or (kind == "none" and engine.exclude_tools_when_tool_choice_none):
        return None
    return [{"type": "function", "function": _function(tool)} for tool in given]


def _function(tool: Any) -> dict[str, Any]:
    schema = tool.get("input_schema") if isinstance(tool, dict) else None
    if not isinstance(schema, dict):
        raise PromptProblem(REFUSED)
    parameters = schema if "type" in schema else {**schema, "type": "object"}
    return dump_function({**tool, "parameters": parameters})


def _effort(body: Mapping[str, Any], engine: EngineConfig, disabled_effort: str) -> Any:
    effort = None
    config, thinking = body.get("output_config"), body.get("thinking")
    if isinstance(config, dict):
        effort = config.get("effort")
    if thinking is not None:
        kind = thinking.get("type") if isinstance(thinking, dict) else None
        if kind not in _THINKING:
            raise PromptProblem(REFUSED)
        if kind == "disabled":
            return disabled_effort
        if kind == "enabled":
            budget = as_int(thinking.get("budget_tokens"))
            fits = MIN_THINKING_TOKENS <= budget < as_int(body["max_tokens"])
            if not fits or not engine.reasoning_parser:
                raise PromptProblem(REFUSED)
    if effort is not None and effort not in _EFFORTS:
        raise PromptProblem(REFUSED)
    return effort
