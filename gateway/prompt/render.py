"""From the messages of a chat to the conversation that its template gets, as vLLM builds it. Pure.

Source: vLLM 0.32, renderers/chat_utils and the types of its chat request; every rule here was seen
in real runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.prompt.problem import REFUSED, PromptProblem
from gateway.prompt.shapes import is_plain_turn, read_message
from routing.value import value

__all__ = [
    "REFUSED",
    "Conversation",
    "PromptProblem",
    "conversation",
    "first_media",
    "fold_developer",
    "read_call",
]

# What no client writes: it stands where a media part begins, in two spellings. The text that comes
# out the same with both is what does not depend on the media.
MEDIA_MARKS = ("\ue000\ue001", "\ue002\ue003")

# Claude Code's line of attribution changes with every request; the engine drops it.
_BILLING_HEADER = "x-anthropic-billing-header"

_TEXT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "text": "text",
        "input_text": "text",
        "output_text": "text",
        "refusal": "refusal",
        "thinking": "thinking",
    }
)
"""Where a part of each kind of text has its text."""

_NULL_TEXT_KINDS = frozenset({"text", "refusal"})

_MODALITY_BY_KIND: Mapping[str, str] = MappingProxyType(
    {
        "image_url": "image",
        "input_image": "image",
        "image_pil": "image",
        "image_embeds": "image",
        "audio_url": "audio",
        "input_audio": "audio",
        "audio_embeds": "audio",
        "video_url": "video",
        "video_embeds": "video",
    }
)

# Fields of parts that the engine knows; all others reach a template that gets the parts.
_PART_FIELDS = frozenset(
    {*_TEXT_KEYS.values(), *_MODALITY_BY_KIND, "type", "uuid", "file", "data", "name", "closed"}
)


@value
class Conversation:
    """What a chat template gets as `messages`.

    Attributes:
        messages: As the engine hands them to the template.
        marked: The same with another mark for the first media part; None where there is none.
    """

    messages: list[dict[str, Any]]
    marked: list[dict[str, Any]] | None = None


def conversation(
    messages: Sequence[Any], *, keep_parts: bool, as_chat: bool = True
) -> Conversation:
    """Return messages as the chat template gets them.

    Args:
        messages: As the client sent them.
        keep_parts: The template iterates over content parts; else their texts are joined.
        as_chat: They came in a chat, so the types of a chat were applied to them.

    Raises:
        PromptProblem: `refused`, where the engine will answer with an error.
    """
    if as_chat:
        messages = [read_message(message) for message in messages]
    rendered = [_message(message, keep_parts, as_chat) for message in messages]
    position = first_media(messages)
    if position is None:
        return Conversation(rendered)
    # Where texts are joined, the engine puts media in front of the message's text. Behind the
    # first media part nothing is known, so the other ones may look as they like.
    first, second = (_marked(messages[position], mark, keep_parts) for mark in MEDIA_MARKS)
    here = rendered[position]
    return Conversation(
        rendered if keep_parts else _replaced(rendered, position, {**here, "content": first}),
        _replaced(rendered, position, {**here, "content": second}),
    )


def first_media(messages: Sequence[Any]) -> int | None:
    """Return the number of the first message with a media part; None for none.

    Raises:
        PromptProblem: `refused`: a part is nothing that the engine takes.
    """
    return next((number for number, each in enumerate(messages) if _has_media(each)), None)


def _replaced(
    messages: list[dict[str, Any]], position: int, message: dict[str, Any]
) -> list[dict[str, Any]]:
    return [*messages[:position], message, *messages[position + 1 :]]


def _has_media(message: Any) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(_modality(part) is not None for part in content)


def _marked(message: Mapping[str, Any], mark: str, keep_parts: bool) -> Any:
    """Return a message's content with its first media part replaced, and nothing behind it."""
    if not keep_parts:
        return mark
    parts = _parts(message["content"], str(message["role"]))
    position = next(i for i, part in enumerate(parts) if _modality(part) is not None)
    before = [part for part in map(_kept_part, parts[:position]) if part is not None]
    return [*before, {"type": "text", "text": mark}]


def _message(message: Mapping[str, Any], keep_parts: bool, as_chat: bool) -> dict[str, Any]:
    role = message["role"]
    if not keep_parts and is_plain_turn(message):
        return {"role": role, "content": message["content"]}
    rendered: dict[str, Any] = {"role": role, "content": _content(message, role, keep_parts)}
    if role == "assistant":
        rendered |= _assistant(message, as_chat)
    if role == "tool" and "tool_call_id" in message:
        rendered["tool_call_id"] = message["tool_call_id"]
    rendered |= {key: message[key] for key in ("name", "task") if isinstance(message.get(key), str)}
    if role == "developer":
        rendered["tools"] = message.get("tools")
    return rendered


def _assistant(message: Mapping[str, Any], as_chat: bool) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    calls = message.get("tool_calls")
    if calls:
        parsed = [read_call(call) for call in calls]
        extra["tool_calls"] = [_ordered(call) for call in parsed] if as_chat else parsed
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        extra |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return extra


def _content(message: Mapping[str, Any], role: str, keep_parts: bool) -> Any:
    content = message.get("content")
    parts = [] if content is None else _parts(content, role)
    if not keep_parts:
        return "\n".join(text for text in map(_joined_text, parts) if text)
    kept = [part for part in map(_kept_part, parts) if part is not None]
    if role == "tool" and all(part["type"] == "text" for part in kept):
        return "\n".join(part["text"] for part in kept)
    return kept


def _parts(content: Any, role: str) -> list[Any]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise PromptProblem(REFUSED)
    return list(_without_billing_header(content)) if role == "system" else content


def _without_billing_header(parts: Sequence[Any]) -> Iterator[Any]:
    for part in parts:
        text = part
        if isinstance(part, dict):
            text = part.get("text") if part.get("type") == "text" else None
        if not isinstance(text, str) or not text.startswith(_BILLING_HEADER):
            yield part
            continue
        rest = text.partition("\n")[2]
        if rest:
            yield rest if isinstance(part, str) else {**part, "text": rest}


def _joined_text(part: Any) -> str | None:
    """Return what a part adds to the joined text; None for nothing."""
    if isinstance(part, dict) and part.get("type") == "tool_reference":
        name = part.get("name")
        return name if isinstance(name, str) else _refuse()
    return None if _modality(part) is not None else _text(part)


def _kept_part(part: Any) -> dict[str, Any] | None:
    """Return a part as a template gets it that iterates over parts; None for one left out."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, dict) and part.get("type") == "tool_reference":
        return {"type": "tool_reference", "name": part.get("name")}
    modality = _modality(part)
    if modality is None:
        text = _text(part)
        if text is None and part["type"] in _NULL_TEXT_KINDS:
            return None
        kept = {"type": "text", "text": text}
    else:
        kept = {"type": modality}
    return kept | {key: part[key] for key in part if key not in _PART_FIELDS}


def _modality(part: Any) -> str | None:
    """Return what kind of media a part is, or None.

    Raises:
        PromptProblem: It is nothing that the engine takes.
    """
    if isinstance(part, str):
        return None
    if not isinstance(part, dict):
        raise PromptProblem(REFUSED)
    kind = part.get("type")
    if kind == "prompt_embeds":
        raise PromptProblem("unsupported")
    if kind is None or part.get("uuid") is not None:
        kind = next((known for known in _MODALITY_BY_KIND if known in part), None)
    if not isinstance(kind, str):
        raise PromptProblem(REFUSED)
    return _MODALITY_BY_KIND.get(kind)


def _text(part: Any) -> str | None:
    """Return the text of a part that is no media; None where it is left out."""
    if isinstance(part, str):
        return part
    kind = part["type"]
    if kind not in _TEXT_KEYS:
        raise PromptProblem(REFUSED)
    text = part.get(_TEXT_KEYS[kind])
    return text if isinstance(text, str | None) else _refuse()


def _refuse() -> str:
    raise PromptProblem(REFUSED)


def read_call(call: Any) -> dict[str, Any]:
    """Return a tool call with its arguments read from their JSON, as templates want them.

    Raises:
        PromptProblem: `refused`.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type") != "function":
        raise PromptProblem(REFUSED)
    texts = (call.get("id"), function.get("name"), function.get("arguments"))
    if not all(isinstance(text, str) for text in texts):
        raise PromptProblem(REFUSED)
    arguments = _arguments(function["arguments"])
    return {**call, "function": {**function, "arguments": arguments}}


def _ordered(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as the types of a chat leave it: known fields first, others behind."""
    function = call["function"]
    first = {key: function[key] for key in ("arguments", "name")}
    return {"id": call["id"], "function": {**first, **function}, "type": "function"} | {
        key: call[key] for key in call if key != "function"
    }


def _arguments(text: str) -> dict[str, Any]:
    # Models call functions with JSON that does not always parse; vLLM then shows an empty object.
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def fold_developer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages for a template that does not know the developer role.

    Developer becomes system, and then all system messages move to the front as one.
    """
    if all(message["role"] != "developer" for message in messages):
        return messages
    folded = [_as_system(message) for message in messages]
    system = [i for i, message in enumerate(folded) if message["role"] == "system"]
    if system == [0]:
        return folded
    texts = [_system_text(folded[i]["content"]) for i in system]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in folded if message["role"] != "system")]


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "developer":
        return message
    return {key: "system" if key == "role" else message[key] for key in message if key != "tools"}


def _system_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
