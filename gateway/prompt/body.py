"""What the gateway reads in a request body: enough to route it, nothing more. Pure.

The body itself is forwarded as the client sent it, byte by byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from gateway.errors import InvalidRequest
from gateway.prompt.form import form_field
from gateway.prompt.json import read_json
from routing.value import value

# How much of a prompt's beginning names its affinity on the `hashed` rung. Long enough to reach
# past a role and a greeting, short enough that a shared document's first page is the same for all.
HEAD_BYTES = 1024
# Bytes of JSON a token, for the estimate where no tokenizer is at hand: English text has about 4.
BYTES_A_TOKEN = 4


class BodyKind(StrEnum):
    """How a body holds its prompt."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"  # OpenAI's Responses API
    MESSAGES = "messages"  # Anthropic's Messages API
    OTHER = "other"  # no prompt that KV blocks are kept for: embeddings, scores
    FORM = "form"  # multipart: audio
    INVOCATION = "invocation"  # SageMaker: the body's own fields say which of these it is


@value
class RequestBody:
    """A body that can be routed.

    Attributes:
        kind: How it holds its prompt; never INVOCATION.
        model: The name that the client asked for.
        fields: The decoded JSON object; empty for a form.
        num_bytes: Length of the body as received.
        cache_salt: What separates its KV blocks from those of equal prompts; empty for nothing.
    """

    kind: BodyKind
    model: str
    fields: dict[str, Any]
    num_bytes: int
    cache_salt: str = ""

    @property
    def stream(self) -> bool:
        """Whether the client asked for a stream."""
        return self.fields.get("stream") is True

    @property
    def continued(self) -> str | None:
        """The stored response that it continues; None for none."""
        found = self.fields.get("previous_response_id")
        return found if self.kind is BodyKind.RESPONSES and isinstance(found, str) else None

    @property
    def estimated_tokens(self) -> int:
        """Prompt length in tokens, guessed from the body's length."""
        return max(1, self.num_bytes // BYTES_A_TOKEN)

    @property
    def has_prompt(self) -> bool:
        """Whether an engine keeps KV blocks for what it holds."""
        return self.kind not in (BodyKind.OTHER, BodyKind.FORM)

    @property
    def skips_cache(self) -> bool:
        """Whether its engine computes all of the prompt, whatever it has cached.

        Source:
            vLLM 0.32: SamplingParams, which does so for logprobs of the prompt, and the protocols,
            which ask for them also where `echo` meets the logprobs of the answer.
        """
        fields = self.fields
        if fields.get("prompt_logprobs") is not None:
            return True
        is_chat = self.kind is BodyKind.CHAT
        wanted = fields.get("top_logprobs", 0) if is_chat else fields.get("logprobs")
        return bool(fields.get("echo")) and wanted is not None

    def salted(self, cache_salt: str) -> RequestBody:
        """Return the same body with another salt."""
        return replace(self, cache_salt=cache_salt)

    def head(self) -> bytes:
        """Return the beginning of the prompt in a form that does not depend on JSON's spelling."""
        texts: list[str] = []
        length = 0
        for item in self._prompt_items():
            text = _head_text(item)
            texts.append(text)
            length += len(text)
            if length >= HEAD_BYTES:  # the rest of a 2 MB conversation is not looked at
                break
        return "\n".join(texts)[:HEAD_BYTES].encode(errors="surrogatepass")[:HEAD_BYTES]

    def _prompt_items(self) -> Iterator[Any]:
        for key in ("system", "messages", "prompt", "input"):
            part = self.fields.get(key)
            if isinstance(part, list):
                yield from part
            elif part is not None:
                yield part


def _head_text(item: Any) -> str:
    if isinstance(item, str):
        return item[:HEAD_BYTES]
    try:
        if isinstance(item, dict) and isinstance(item.get("content"), str):
            return f"{item.get('role')}\n{item['content'][:HEAD_BYTES]}"
        return json.dumps(item)[:HEAD_BYTES]
    except RecursionError:  # nested as deep as could just be read: no engine takes it
        return ""


def read_body(
    body: bytes, kind: BodyKind, *, content_type: str = "", refused_fields: Sequence[str] = ()
) -> RequestBody:
    """Decode a body and check what routing needs.

    Python's own json is used because vLLM uses it: what it takes (NaN, lone surrogates, the last
    of two equal keys), we take.

    Args:
        body: As received, content encodings undone.
        kind: What the path expects.
        content_type: The request's Content-Type; a form's boundary is in it.
        refused_fields: Fields that clients may not send.

    Raises:
        InvalidRequest: It cannot be decoded, or `model`, `messages` or `prompt` are missing or of
            a type that no engine takes, or a field is refused.
    """
    if kind is BodyKind.FORM:
        model = form_field(body, content_type, "model")
        if not model:
            raise InvalidRequest("`model` is required: a form field.", param="model")
        return RequestBody(kind, model, {}, len(body))
    fields = _json_object(body)
    if kind is BodyKind.INVOCATION:
        kind = _kind_by_fields(fields)
    for name in refused_fields:
        if fields.get(name) is not None:
            raise InvalidRequest(f"`{name}` is not allowed here.", param=name)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("`model` is required: the name of a served model.", param="model")
    _check_prompt(kind, fields)
    salt = fields.get("cache_salt")
    return RequestBody(kind, model, fields, len(body), salt if isinstance(salt, str) else "")


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        fields = read_json(body)
    except (ValueError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return fields


def _kind_by_fields(fields: dict[str, Any]) -> BodyKind:
    """Return what an invocation is, as vLLM tells it: by the schema that its body fits."""
    if "messages" in fields:
        return BodyKind.CHAT
    return BodyKind.COMPLETION if "prompt" in fields else BodyKind.OTHER


def _check_prompt(kind: BodyKind, fields: dict[str, Any]) -> None:
    if kind in (BodyKind.CHAT, BodyKind.MESSAGES):
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            message = "`messages` is required: a list of at least one message."
            raise InvalidRequest(message, param="messages")
    prompt = (fields.get("prompt"), fields.get("prompt_embeds"))
    if kind is BodyKind.COMPLETION and prompt == (None, None):
        raise InvalidRequest("`prompt` is required: text or token ids.", param="prompt")


def splice_cache_salt(body: bytes, cache_salt: str) -> bytes:
    """Return a JSON object's bytes with a `cache_salt` added; see `splice_field`.

    Args:
        body: As `splice_field` takes it.
        cache_salt: Printable ASCII.
    """
    return splice_field(body, "cache_salt", json.dumps(cache_salt).encode())


def splice_field(body: bytes, name: str, content: bytes) -> bytes:
    """Return a JSON object's bytes with a field added; every other byte stays.

    It goes to the end, where it wins over a client's own: of equal keys the engine takes the last.

    Args:
        body: A JSON object with at least one field, in any encoding that `read_body` takes.
        name: The field's, without anything to escape.
        content: Its value as JSON.
    """
    encoding = json.detect_encoding(body)
    if encoding not in ("utf-8", "utf-8-sig"):
        body = body.decode(encoding).encode()
    end = body.rstrip().rfind(b"}")
    return b"".join((body[:end], b',"', name.encode(), b'":', content, body[end:]))
