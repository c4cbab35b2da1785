"""Scripted replicas that answer as vLLM's endpoints do, those included that no simulator has."""

import json
import re
from dataclasses import dataclass, field

from tests.support.replicas import Conversation, Received, ScriptedReplica

PROBED = {b"/health", b"/v1/models", b"/metrics", b"/version", b"/kv_event_sources"}


class ApiReplica(ScriptedReplica):
    """Hands GETs to the script too, but for those that probes send."""

    async def _probe(self, conversation):
        if path_of(conversation.request) in PROBED:
            await super()._probe(conversation)
        else:
            self.received.append(conversation.request)
            await self.script(conversation)


def path_of(request: Received) -> bytes:
    return request.line.split()[1].partition(b"?")[0]


def fields(request: Received) -> dict:
    return json.loads(request.body)


def sse(event: dict, name: str | None = None) -> bytes:
    """Return one event as vLLM writes it: with a name on /v1/messages and /v1/responses."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(event)}\n\n".encode()


async def answer_json(conversation: Conversation, value, status=b"200 OK", extra=b"") -> None:
    await conversation.answer(json.dumps(value).encode(), status=status, extra=extra)


async def stream(conversation: Conversation, *events: bytes) -> None:
    await conversation.start_stream()
    for event in events:
        await conversation.chunk(event)
    await conversation.end()


def refuses(status: bytes, body: dict, extra: bytes = b""):
    """Return a script that answers everything with one error."""

    async def script(conversation):
        await answer_json(conversation, body, status, extra)

    return script


def vllm_error(message: str, kind: str, code: int, param: str | None = None) -> dict:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


# Chat

USAGE = {
    "prompt_tokens": 32,
    "total_tokens": 36,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 16},
}
DONE = b"data: [DONE]\n\n"


def chat_answer(message: dict, finish_reason: str = "stop") -> dict:
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-99f2cac3177e23b6",
        "object": "chat.completion",
        "created": 1795969258,
        "model": "m",
        "choices": [choice],
        "usage": USAGE,
    }


def chat_event(delta: dict, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return sse(
        {
            "id": "chatcmpl-99f2cac3177e23b6",
            "object": "chat.completion.chunk",
            "created": 1795969258,
            "model": "m",
            "choices": [choice],
        }
    )


async def says_hello(conversation: Conversation) -> None:
    """Answer any chat, as a stream where that was asked for."""
    if fields(conversation.request).get("stream"):
        start = chat_event({"role": "assistant", "content": ""})
        words = [chat_event({"content": text}) for text in ("hel", "lo")]
        await stream(conversation, start, *words, chat_event({}, "stop"), DONE)
    else:
        await answer_json(conversation, chat_answer({"role": "assistant", "content": "hello"}))


TOOL_CALL = {
    "id": "chatcmpl-tool-1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
}


async def calls_a_tool(conversation: Conversation) -> None:
    """Ask for the weather; the stream cuts the arguments in two, as engines do."""
    if not fields(conversation.request).get("stream"):
        message = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
        await answer_json(conversation, chat_answer(message, "tool_calls"))
        return
    head, arguments = {**TOOL_CALL, "index": 0}, TOOL_CALL["function"]["arguments"]
    head["function"] = {"name": "weather", "arguments": ""}
    parts = [
        {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
        for part in (arguments[:7], arguments[7:])
    ]
    deltas = [{"role": "assistant", "content": ""}, {"tool_calls": [head]}, *parts]
    events = [chat_event(delta) for delta in deltas]
    await stream(conversation, *events, chat_event({}, "tool_calls"), DONE)


# Responses


def response_object(response_id: str, status: str = "completed", text: str = "hello") -> dict:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1795969258,
        "status": status,
        "model": "m",
        "output": [message] if status == "completed" else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


@dataclass
class KeepsResponses:
    """The script of a replica that knows the responses that it made, and only those."""

    prefix: str
    made: list[str] = field(default_factory=list)

    async def __call__(self, conversation: Conversation) -> None:
        method, target = conversation.request.line.split()[:2]
        asked = re.fullmatch(rb"/v1/responses/([^/?]+)(/cancel)?", target.partition(b"?")[0])
        if asked is None:
            await self._make(conversation)
            return
        response_id = asked[1].decode()
        if response_id not in self.made:
            error = vllm_error("Response not found.", "invalid_request_error", 404, "response_id")
            await answer_json(conversation, error, b"404 Not Found")
            return
        status = "cancelled" if asked[2] and method == b"POST" else "completed"
        await answer_json(conversation, response_object(response_id, status))

    async def _make(self, conversation: Conversation) -> None:
        response_id = f"resp_{self.prefix}{len(self.made)}"
        self.made.append(response_id)
        if not fields(conversation.request).get("stream"):
            await answer_json(conversation, response_object(response_id))
            return
        whole = response_object(response_id)
        events = [
            {"type": "response.created", "response": {**whole, "status": "in_progress"}},
            _text_delta("hel"),
            _text_delta("lo"),
            {"type": "response.completed", "response": whole},
        ]
        numbered = [{**event, "sequence_number": n} for n, event in enumerate(events)]
        await stream(conversation, *[sse(event, event["type"]) for event in numbered])


def _text_delta(text: str) -> dict:
    return {
        "type": "response.output_text.delta",
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": text,
        "logprobs": [],
    }


# Anthropic's messages


def anthropic_error(kind: str, message: str) -> dict:
    return {"type": "error", "error": {"type": kind, "message": message}}


def message_object(content: list[dict], stop_reason: str | None = "end_turn") -> dict:
    return {
        "id": "chatcmpl-8c5b",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": "m",
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "output_tokens": 2},
    }


def message_events(*texts: str) -> list[bytes]:
    """Return the events of one text answer, in Anthropic's order."""
    start = message_object([], None)
    deltas = [
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        }
        for text in texts
    ]
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"input_tokens": 12, "output_tokens": 2},
        },
        {"type": "message_stop"},
    ]
    return [sse(event, event["type"]) for event in events]


async def speaks_anthropic(conversation: Conversation) -> None:
    """Answer /v1/messages and /v1/messages/count_tokens."""
    if path_of(conversation.request) == b"/v1/messages/count_tokens":
        await answer_json(conversation, {"input_tokens": 12})
    elif fields(conversation.request).get("stream"):
        await stream(conversation, *message_events("hel", "lo"))
    else:
        await answer_json(conversation, message_object([{"type": "text", "text": "hello"}]))
