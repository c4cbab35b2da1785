"""What a replica is asked for the token ids of a prompt, and how its answer is read. Pure.

Source: vLLM 0.32, /tokenize and /v1/.../render. /tokenize is not the run: it has no reasoning
effort, drops `reasoning_content` and shows tools always, so it is asked in terms that it has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.prompt.body import BodyKind
from gateway.prompt.chat import ChatRequest
from gateway.prompt.completion import CompletionPrompt
from routing.hashing import pack_tokens
from routing.value import value

TOKENIZE_PATH = "/tokenize"
RENDER_PATHS: Mapping[BodyKind, str] = MappingProxyType(
    {
        BodyKind.CHAT: "/v1/chat/completions/render",
        BodyKind.COMPLETION: "/v1/completions/render",
        BodyKind.RESPONSES: "/v1/responses/render",
        BodyKind.MESSAGES: "/v1/messages/render",
    }
)
"""Where an engine that runs with --enable-scale-out renders a request as it would run it."""

_TURN = ("add_generation_prompt", "continue_final_message")


@value
class Question:
    """One question to a replica.

    Attributes:
        path: Where.
        body: JSON.
    """

    path: str
    body: bytes


def chat_question(model: str, request: ChatRequest) -> Question | None:
    """Return the question about a chat; None where /tokenize cannot answer it."""
    if request.lengths.truncation is not None or request.template is not None:
        return None
    arguments = {**request.own_arguments}
    arguments.update((k, v) for k, v in request.arguments.items() if v is not None)
    fields: dict[str, Any] = {
        "model": model,
        "messages": [_message(message, as_chat=request.as_chat) for message in request.messages],
        "add_special_tokens": request.add_special_tokens,
        **{key: arguments.pop(key) for key in _TURN if key in arguments},
        "chat_template_kwargs": arguments,
    }
    if request.tools is not None:
        fields["tools"] = request.tools
    return _question(TOKENIZE_PATH, fields)


def _message(message: Any, *, as_chat: bool) -> Any:
    if not isinstance(message, dict):
        return message
    asked = {key: message[key] for key in message if key != "reasoning_content"}
    if asked.get("reasoning") is None and message.get("reasoning_content") is not None:
        asked["reasoning"] = message["reasoning_content"]
    if not as_chat and isinstance(asked.get("content"), list):
        asked["content"] = [_part(part) for part in asked["content"]]
    return asked


def _part(part: Any) -> Any:
    # The types of a chat know no `input_text`.
    is_text = isinstance(part, dict) and part.get("type") in ("input_text", "output_text")
    return {**part, "type": "text"} if is_text else part


def completion_question(model: str, prompt: CompletionPrompt) -> Question | None:
    """Return the question about a completion; None where /tokenize cannot answer it."""
    if prompt.text is None or prompt.lengths.truncation is not None:
        return None
    fields = {
        "model": model,
        "prompt": prompt.text,
        "add_special_tokens": prompt.add_special_tokens,
    }
    return _question(TOKENIZE_PATH, fields)


def render_question(kind: BodyKind, fields: Mapping[str, Any]) -> Question:
    """Return the question to a replica that renders whole requests."""
    return _question(RENDER_PATHS[kind], fields)


def _question(path: str, fields: Mapping[str, Any]) -> Question:
    return Question(path, json.dumps(fields, separators=(",", ":")).encode())


def packed_answer(body: bytes) -> bytes:
    """Return the packed token ids of an answer.

    Raises:
        ValueError: It is no answer to such a question.
    """
    try:
        answer = json.loads(body)
        first = answer[0] if isinstance(answer, list) else answer
        if first.get("features"):
            raise ValueError("media: equal ids may stand for different pictures")
        return pack_tokens(first["tokens"] if "tokens" in first else first["token_ids"])
    except (TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        raise ValueError("no token ids") from error
