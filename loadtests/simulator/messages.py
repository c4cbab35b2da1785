"""Chat bodies as vLLM hands them to the chat template.

Only text, and templates that take content as one string. A separate reading of the rules from the
gateway's own, so that the two can be checked against each other.

Source:
    Behaviour of vLLM 0.32, observed through prompt_token_ids of real runs.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from loadtests.simulator.errors import bad_request

Message = dict[str, Any]

_BILLING_HEADER = "x-anthropic-billing-header"
_TEXT_KEY_BY_PART_TYPE: Mapping[str, str] = MappingProxyType(
    {
        "text": "text",
        "input_text": "text",
        "output_text": "text",
        "refusal": "refusal",
        "thinking": "thinking",
    }
)


def conversation(messages: Sequence[Message], *, has_developer: bool) -> list[Message]:
    """Return the messages that the template sees.

    Args:
        messages: As in the request body.
        has_developer: Whether the template knows the role `developer`.

    Raises:
        ApiError: 400, a message cannot be turned into text.
    """
    parsed = [_parse(message) for message in messages]
    if has_developer or all(message["role"] != "developer" for message in parsed):
        return parsed
    return _merge_systems(parsed)


def tool_schemas(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return tools with vLLM's keys in vLLM's order, or None.

    Raises:
        ApiError: 400, a tool is not a function with a name.
    """
    if tools is None:
        return None
    return [_tool_schema(tool) for tool in tools]


def _tool_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad_request("every tool needs a function with a name", "tools")
    schema = {key: function.get(key) for key in ("name", "description", "parameters")}
    for optional in ("strict", "defer_loading"):
        if optional in function:
            schema[optional] = function[optional]
    return {"type": tool.get("type", "function"), "function": schema}


def _parse(message: Message) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise bad_request("every message needs a role", "messages")
    parsed: Message = {"role": role, "content": _text(role, message.get("content"))}
    if role == "assistant":
        _parse_assistant(message, parsed)
    if role == "tool" and "tool_call_id" in message:
        parsed["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        parsed["name"] = message["name"]
    return parsed


def _parse_assistant(message: Message, parsed: Message) -> None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise bad_request("tool_calls must be a list", "messages")
    if calls:
        parsed["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = message.get("reasoning", message.get("reasoning_content"))
    if reasoning is not None:
        parsed["reasoning"] = parsed["reasoning_content"] = reasoning


def _tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise bad_request("every tool call needs a function", "messages")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        raise bad_request("arguments of a tool call must be a string", "messages")
    return {**call, "function": {**function, "arguments": _arguments(arguments or "")}}


def _arguments(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _text(role: str, content: Any) -> str:
    if content is None:
        if role != "assistant":
            raise bad_request(f"content of a {role} message must not be null", "messages")
        return ""
    if isinstance(content, str):
        return _without_billing_header(content) if role == "system" else content
    if not isinstance(content, list):
        raise bad_request("content must be a string or a list of parts", "messages")
    parts = [_part_text(part) for part in content]
    return "\n".join(part for part in parts if part)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    key = _TEXT_KEY_BY_PART_TYPE.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise bad_request(f"a text model takes no {kind} part", "messages")
    text = part.get(key)
    return text if isinstance(text, str) else ""


def _without_billing_header(text: str) -> str:
    if not text.startswith(_BILLING_HEADER):
        return text
    return text.partition("\n")[2]


def _merge_systems(messages: list[Message]) -> list[Message]:
    systems = [message for message in messages if message["role"] in {"system", "developer"}]
    rest = [message for message in messages if message["role"] not in {"system", "developer"}]
    text = "\n\n".join(message["content"] for message in systems)
    return [{"role": "system", "content": text}, *rest]
