"""What the engine's types make of the messages of a chat. Pure.

vLLM checks a message against OpenAI's types for its role and against a wide one of its own, and
pydantic takes the one that more of the message's fields fit. Of the strict ones it checks the parts
of the content only when they are read, and what fails then is read as if it were empty. What comes
out of that is written down here as it was seen.

Source: vLLM 0.32 with pydantic 2.14; tests/data/golden, and 1,500 bodies against its rendering
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.prompt.problem import REFUSED, PromptProblem

# Roles with a type of OpenAI's that lets unknown fields through.
# Tuples: what a client sends in their place may be a list, which no set can be asked for.
_KNOWN_ROLES = ("user", "system", "developer", "assistant")
# Fields that only the wide type has: with one of them it is the one that fits best.
_WIDE_FIELDS = frozenset({"tool_call_id", "reasoning", "reasoning_content", "task", "tools"})
_TYPED_FIELDS: Mapping[str, type] = MappingProxyType(
    {
        "tool_call_id": str,
        "reasoning": str,
        "reasoning_content": str,
        "task": str,
        "tools": list,
    }
)
# Fields of media parts: they make any part fit.
_MEDIA_FIELDS = frozenset(
    f"{modality}_{form}" for modality in ("image", "audio", "video") for form in ("url", "embeds")
) | {"image_pil", "input_audio", "file"}
# Parts that some type names: the key that has to be there, by the part's kind.
_KEY_BY_KIND: Mapping[str, str] = MappingProxyType(
    {"text": "text", "refusal": "refusal", "thinking": "thinking"}
)


def read_message(message: Any) -> dict[str, Any]:
    """Return a message as the engine reads it: without content where its parts fit no type.

    Raises:
        PromptProblem: `refused`.
    """
    if not isinstance(message, dict):
        raise PromptProblem(REFUSED)
    if is_plain_turn(message):
        return message
    role = message.get("role")
    if not isinstance(role, str) or not _fits(message, role):
        raise PromptProblem(REFUSED)
    return {**message, "content": []} if _is_read_empty(message, role) else message


def is_plain_turn(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a text of the user or the assistant and no more.

    Nearly all of a long chat's are, and for them none of the rules here says anything: a third of
    the time that rendering took.
    """
    has_text = len(message) == 2 and isinstance(message.get("content"), str)
    return has_text and message.get("role") in ("user", "assistant")


def _is_read_empty(message: Mapping[str, Any], role: str) -> bool:
    content = message.get("content")
    if isinstance(content, list) and (role in _KNOWN_ROLES or role == "tool"):
        return not _has_named_part(message, content, role)
    return isinstance(content, dict)


def _fits(message: Mapping[str, Any], role: str) -> bool:
    if not isinstance(message.get("name", ""), str):
        return False
    if not isinstance(message.get("tool_calls"), list | None):
        return False
    if role not in _KNOWN_ROLES and not _fits_wide_type(message, role):
        return False
    content = message.get("content", "")
    if content is None:
        # A null in `tool_calls` leaves the wide type alone, and that one wants a content.
        return role == "assistant" and message.get("tool_calls", []) is not None
    return isinstance(content, str | list) or (isinstance(content, dict) and role in _KNOWN_ROLES)


def _fits_wide_type(message: Mapping[str, Any], role: str) -> bool:
    if role == "tool" and isinstance(message.get("tool_call_id"), str):
        return True  # then it fits the strict one, which does not look at the others
    return all(
        message.get(key) is None or isinstance(message[key], kind)
        for key, kind in _TYPED_FIELDS.items()
    )


def _has_named_part(message: Mapping[str, Any], parts: list[Any], role: str) -> bool:
    """Return whether anything makes the wide type fit better, which takes all parts."""
    wide = _WIDE_FIELDS - {"tool_call_id"} if role == "tool" else _WIDE_FIELDS
    return bool(wide & message.keys()) or any(map(_is_named, parts))


def _is_named(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    if isinstance(kind, str) and isinstance(part.get(_KEY_BY_KIND.get(kind, "")), str):
        return True
    return kind == "tool_reference" or bool(_MEDIA_FIELDS & part.keys())
