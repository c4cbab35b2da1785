"""Response bodies of chat and completions, field by field and in vLLM's order.

Source:
    tests/data/vllm-0.32/stream_*.sse, chat_nonstream_token_ids.json; for completions without a
    stream: CompletionResponse in vllm/entrypoints/openai/completion/protocol.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from loadtests.simulator.replies import Reply

DONE = b"data: [DONE]\n\n"

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """What all bodies of one response share."""

    response_id: str
    created_s: int
    model: str
    fingerprint: str
    show_token_ids: bool
    show_details: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """One prompt and its reply."""

    index: int
    prompt_ids: Sequence[int]
    reply: Reply


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Prompt tokens that were found in the cache, and those that are in it now because of us."""

    cached_tokens: int
    created_tokens: int


class Shape(Protocol):
    """Bodies of one endpoint for one response."""

    def opening(self, choice: Choice, usage: Fields | None) -> bytes:
        """Return what a stream sends before the first token of a choice; may be empty."""

    def token(self, choice: Choice, at: int, usage: Fields | None) -> bytes:
        """Return the event of the token `at`."""

    def usage_event(self, choices: Sequence[Choice], counts: CacheCounts) -> bytes:
        """Return the event with the final usage."""

    def whole(self, choices: Sequence[Choice], counts: CacheCounts) -> bytes:
        """Return the body of a response without a stream."""


def usage_counts(prompt_tokens: int, completion_tokens: int) -> Fields:
    """Return the three counts of every usage."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def _sum_counts(choices: Sequence[Choice]) -> Fields:
    prompt_tokens = sum(len(choice.prompt_ids) for choice in choices)
    return usage_counts(prompt_tokens, sum(len(c.reply.token_ids) for c in choices))


def _event(fields: Fields) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


class _Stream:
    """Events of a choice: everything but text, end and ids is the same in each, and made once."""

    def __init__(self, head: Head, kind: str) -> None:
        self.head = head
        self.fields: Fields = {
            "id": head.response_id,
            "object": kind,
            "created": head.created_s,
            "model": head.model,
        }
        self.prefix = b"data: " + msgspec.json.encode(self.fields)[:-1] + b',"choices":[{"index":'

    def usage_event(self, choices: Sequence[Choice], details: Fields) -> bytes:
        usage = _sum_counts(choices)
        if self.head.show_details:
            usage["prompt_tokens_details"] = details
        end = {"choices": [], "usage": usage, "system_fingerprint": self.head.fingerprint}
        return _event({**self.fields, **end})

    def shown_ids(self, token_ids: Sequence[int]) -> list[int] | None:
        return list(token_ids) if self.head.show_token_ids else None


def _tail(usage: Fields | None) -> bytes:
    return b"}]}\n\n" if usage is None else b'}],"usage":' + msgspec.json.encode(usage) + b"}\n\n"


class ChatShape:
    """/v1/chat/completions."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._stream = _Stream(head, "chat.completion.chunk")

    def opening(self, choice: Choice, usage: Fields | None) -> bytes:
        """Return the event that names the role."""
        role = {
            "index": choice.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        fields = {**self._stream.fields, "choices": [role]}
        if usage is not None:
            fields["usage"] = usage
        fields["prompt_token_ids"] = self._stream.shown_ids(choice.prompt_ids)
        fields["prompt_text"] = None
        return _event(fields)

    def token(self, choice: Choice, at: int, usage: Fields | None) -> bytes:
        """Return the event of one token."""
        reply = choice.reply
        text = msgspec.json.encode(reply.pieces[at])
        ids = msgspec.json.encode(self._stream.shown_ids(reply.token_ids[at : at + 1]))
        if at + 1 < len(reply.token_ids):
            end = b"null"
        else:
            reason = msgspec.json.encode(reply.stop_reason)
            end = b'"%s","stop_reason":%s' % (reply.finish_reason.encode(), reason)
        event = b'%s%d,"delta":{"content":%s},"logprobs":null,"finish_reason":%s,"token_ids":%s%s'
        return event % (self._stream.prefix, choice.index, text, end, ids, _tail(usage))

    def usage_event(self, choices: Sequence[Choice], counts: CacheCounts) -> bytes:
        """Return the event with the final usage."""
        return self._stream.usage_event(choices, _chat_details(counts))

    def whole(self, choices: Sequence[Choice], counts: CacheCounts) -> bytes:
        """Return the body of a response without a stream."""
        (choice,) = choices
        reply, head = choice.reply, self._head
        message = {
            "role": "assistant",
            "content": "".join(reply.pieces),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        shown = {
            "index": choice.index,
            "message": message,
            "logprobs": None,
            "finish_reason": reply.finish_reason,
            "stop_reason": reply.stop_reason,
            "token_ids": self._stream.shown_ids(reply.token_ids),
            "routed_experts": None,
        }
        details = {**_chat_details(counts), "multimodal_tokens": None}
        fields = {
            **self._stream.fields,
            "object": "chat.completion",
            "choices": [shown],
            "service_tier": None,
            "system_fingerprint": head.fingerprint,
            "usage": _whole_usage(head, choices, details),
            "prompt_logprobs": None,
            "prompt_token_ids": self._stream.shown_ids(choice.prompt_ids),
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        return msgspec.json.encode(fields)


class CompletionShape:
    """/v1/completions, one choice a prompt."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._stream = _Stream(head, "text_completion")

    def opening(self, choice: Choice, usage: Fields | None) -> bytes:
        """Return nothing: completions start with a token."""
        del choice, usage
        return b""

    def token(self, choice: Choice, at: int, usage: Fields | None) -> bytes:
        """Return the event of one token."""
        reply = choice.reply
        is_last = at + 1 == len(reply.token_ids)
        shown = {
            "index": choice.index,
            "text": reply.pieces[at],
            "logprobs": None,
            "finish_reason": reply.finish_reason if is_last else None,
            "stop_reason": reply.stop_reason if is_last else None,
            "prompt_token_ids": None if at else self._stream.shown_ids(choice.prompt_ids),
            "token_ids": self._stream.shown_ids(reply.token_ids[at : at + 1]),
        }
        fields = {**self._stream.fields, "choices": [shown]}
        if usage is not None:
            fields["usage"] = usage
        return _event(fields)

    def usage_event(self, choices: Sequence[Choice], counts: CacheCounts) -> bytes:
        """Return the event with the final usage."""
        return self._stream.usage_event(choices, {"cached_tokens": counts.cached_tokens})

    def whole(self, choices: Sequence[Choice], counts: CacheCounts) -> bytes:
        """Return the body of a response without a stream."""
        shown = [
            {
                "index": choice.index,
                "text": "".join(choice.reply.pieces),
                "logprobs": None,
                "finish_reason": choice.reply.finish_reason,
                "stop_reason": choice.reply.stop_reason,
                "token_ids": self._stream.shown_ids(choice.reply.token_ids),
                "prompt_logprobs": None,
                "prompt_token_ids": self._stream.shown_ids(choice.prompt_ids),
                "routed_experts": None,
            }
            for choice in choices
        ]
        details = {
            "cached_tokens": counts.cached_tokens,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        }
        fields = {
            **self._stream.fields,
            "choices": shown,
            "service_tier": None,
            "system_fingerprint": self._head.fingerprint,
            "usage": _whole_usage(self._head, choices, details),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        return msgspec.json.encode(fields)


def _chat_details(counts: CacheCounts) -> Fields:
    return {
        "cached_tokens": counts.cached_tokens,
        "created_cache_tokens": counts.created_tokens,
    }


def _whole_usage(head: Head, choices: Sequence[Choice], details: Fields) -> Fields:
    return {
        **_sum_counts(choices),
        "prompt_tokens_details": details if head.show_details else None,
        "completion_tokens_details": None,
    }
