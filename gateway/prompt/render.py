"""From the body of a chat to the arguments of its chat template, as vLLM builds them. Pure.

Source: vLLM 0.32, renderers/chat_utils and the chat request's own fields; every rule here was
seen in real runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class PromptProblem(Exception):
    """This prompt's token ids cannot be known here; `reason` says why, in one word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# Set by `template_arguments` itself; a client's chat_template_kwargs cannot override these.
_OWN_ARGUMENTS = frozenset({"chat_template", "messages", "conversation", "tokenize"})


def conversation(messages: list[Any], *, keep_parts: bool) -> list[dict[str, Any]]:
    """Return messages as the chat template gets them.

    Args:
        messages: As the client sent them.
        keep_parts: The template iterates over content parts; else their texts are joined.

    Raises:
        PromptProblem: `refused`, where the engine will answer with an error; `multimodal`, where
            a part is no text.
    """
    return [_message(message, keep_parts=keep_parts) for message in messages]


def _message(message: Any, *, keep_parts: bool) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise PromptProblem("refused")
    role = message["role"]
    rendered: dict[str, Any] = {"role": role, "content": _content(message, role, keep_parts)}
    if isinstance(message.get("name"), str):
        rendered["name"] = message["name"]
    if role == "assistant":
        rendered |= _assistant(message)
    if role == "tool" and "tool_call_id" in message:
        rendered["tool_call_id"] = message["tool_call_id"]
    return rendered


def _assistant(message: Mapping[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise PromptProblem("refused")
        extra["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = message.get("reasoning", message.get("reasoning_content"))
    if reasoning is not None:
        extra |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return extra


def _content(message: Mapping[str, Any], role: str, keep_parts: bool) -> Any:
    content = message.get("content")
    if content is None:
        if role != "assistant":
            raise PromptProblem("refused")
        return ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if keep_parts else content
    if not isinstance(content, list):
        raise PromptProblem("refused")
    texts = [text for part in content if (text := _part_text(part)) is not None]
    if keep_parts and role != "tool":
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(text for text in texts if text)


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise PromptProblem("refused")
    for kind, key in (("text", "text"), ("refusal", "refusal"), ("thinking", "thinking")):
        if part.get("type") == kind:
            text = part.get(key)
            return text if isinstance(text, str) else None
    raise PromptProblem("multimodal")


def _tool_call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise PromptProblem("refused")
    arguments = call["function"].get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        raise PromptProblem("refused")
    return {**call, "function": {**call["function"], "arguments": _arguments(arguments)}}


def _arguments(text: str | None) -> dict[str, Any]:
    # Models call functions with JSON that does not always parse; vLLM then shows an empty object.
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the tools as vLLM's models dump them: this key order, nulls filled, unknown dropped.

    Raises:
        PromptProblem: `refused`.
    """
    given = body.get("tools")
    if given is None:
        return None
    if not isinstance(given, list) or not given:
        raise PromptProblem("refused")
    return [_tool(tool) for tool in given]


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise PromptProblem("refused")
    dumped = {key: function.get(key) for key in ("name", "description", "parameters")}
    dumped |= {key: function[key] for key in ("strict", "defer_loading") if key in function}
    return {"type": tool.get("type", "function"), "function": dumped}


def template_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that a chat's body gives to its template.

    Raises:
        PromptProblem: `refused`, or `unsupported` for fields that change the ids in ways that are
            not reproduced here.
    """
    own = body.get("chat_template_kwargs") or {}
    if not isinstance(own, dict) or _OWN_ARGUMENTS & own.keys():
        raise PromptProblem("refused")
    if body.get("chat_template") or body.get("truncate_prompt_tokens") is not None:
        raise PromptProblem("unsupported")
    arguments: dict[str, Any] = {"add_generation_prompt": True, **own}
    for key in ("add_generation_prompt", "continue_final_message", "documents"):
        if body.get(key) is not None:
            arguments[key] = body[key]
    effort = body.get("reasoning_effort")
    if effort is not None:
        arguments = {"reasoning_effort": effort, "enable_thinking": effort != "none"} | arguments
    if arguments.get("continue_final_message") and arguments["add_generation_prompt"]:
        raise PromptProblem("refused")
    return arguments


def fold_developer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages for a template that does not know the developer role.

    Developer becomes system, and then all system messages move to the front as one.
    """
    if all(message["role"] != "developer" for message in messages):
        return messages
    system = [m["content"] for m in messages if m["role"] in ("developer", "system")]
    if not all(isinstance(content, str) for content in system):
        raise PromptProblem("unsupported")
    rest = [m for m in messages if m["role"] not in ("developer", "system")]
    return [{"role": "system", "content": "\n\n".join(system)}, *rest]
