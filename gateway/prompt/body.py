"""What the gateway reads in a request body: enough to route it, nothing more. Pure.

The body itself is forwarded as the client sent it, byte by byte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.errors import InvalidRequest

# How much of a prompt's beginning names its affinity on the `hashed` rung. Long enough to reach
# past a role and a greeting, short enough that a shared document's first page is the same for all.
HEAD_BYTES = 1024
# Bytes of JSON a token, for the estimate where no tokenizer is at hand: English text has about 4.
BYTES_A_TOKEN = 4


class BodyKind(StrEnum):
    """How a body holds its prompt."""

    CHAT = "chat"
    COMPLETION = "completion"
    OTHER = "other"  # no prompt that KV blocks are kept for: embeddings, scores


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A body that can be routed.

    Attributes:
        kind: Chat, completion, or neither.
        model: The name that the client asked for.
        fields: The decoded JSON object.
        num_bytes: Length of the body as received.
    """

    kind: BodyKind
    model: str
    fields: dict[str, Any]
    num_bytes: int

    @property
    def stream(self) -> bool:
        """Whether the client asked for a stream."""
        return self.fields.get("stream") is True

    @property
    def cache_salt(self) -> str:
        """The cache salt (a vLLM field that separates tenants); empty for none."""
        salt = self.fields.get("cache_salt")
        return salt if isinstance(salt, str) else ""

    @property
    def estimated_tokens(self) -> int:
        """Prompt length in tokens, guessed from the body's length."""
        return max(1, self.num_bytes // BYTES_A_TOKEN)

    def head(self) -> bytes:
        """Return the beginning of the prompt in a form that does not depend on JSON's spelling."""
        prompt = self.fields.get("messages") or self.fields.get("prompt") or ""
        text = prompt if isinstance(prompt, str) else json.dumps(_beginning(prompt))
        return text[:HEAD_BYTES].encode(errors="surrogatepass")[:HEAD_BYTES]


def _beginning(prompt: Any) -> Any:
    # Dumping a whole 2 MB conversation to keep 1 KiB of it would be a waste.
    if not isinstance(prompt, list):
        return prompt
    taken: list[Any] = []
    length = 0
    for item in prompt:
        if length >= HEAD_BYTES:
            break
        short = item
        if isinstance(item, dict) and isinstance(item.get("content"), str):
            short = [item.get("role"), item["content"][:HEAD_BYTES]]
        taken.append(short)
        length += len(json.dumps(short))
    return taken


def read_body(body: bytes, kind: BodyKind) -> RequestBody:
    """Decode a body and check what routing needs.

    Python's own json is used because vLLM uses it: what it takes (NaN, lone surrogates, the last
    of two equal keys), we take.

    Raises:
        InvalidRequest: Not JSON, not an object, or `model`, `messages` or `prompt` are missing or
            of a type that no engine takes.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The body must be a JSON object.")
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("`model` is required: the name of a served model.", param="model")
    if kind is BodyKind.CHAT:
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            message = "`messages` is required: a list of at least one message."
            raise InvalidRequest(message, param="messages")
    if kind is BodyKind.COMPLETION and fields.get("prompt") is None:
        raise InvalidRequest("`prompt` is required: text or token ids.", param="prompt")
    return RequestBody(kind, model, fields, len(body))
