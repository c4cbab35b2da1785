"""The engine's own word on cached tokens, in the words of every API."""

import json

import pytest

from gateway.proxy.usage import Usage, UsageReader


def read(*pieces):
    reader = UsageReader()
    for piece in pieces:
        reader.feed(piece)
    return reader.usage()


def event(name, content):
    return f"event: {name}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(9, 2, None)),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}},
            Usage(9, 0, 8),
        ),
        (
            {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 8}},
            Usage(9, 2, 8),
        ),
        ({"input_tokens": 9, "output_tokens": 2}, Usage(9, 2, None)),
        (
            {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 8},
            Usage(9, 2, 8),
        ),
        (
            {
                "input_tokens": 1,
                "output_tokens": 2,
                "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 16,
            },
            Usage(17, 2, 0),
        ),
        ({"input_tokens": 1, "cache_read_input_tokens": "8"}, None),
        ({"input_tokens": -1}, None),
    ],
    ids=["chat", "cached", "responses", "messages", "read", "written", "text", "negative"],
)
def test_usage_in_the_words_of_every_api(usage, expected):
    assert read(json.dumps({"choices": [], "usage": usage}, separators=(",", ":")).encode()) == (
        expected
    )


def test_of_a_stream_of_the_messages_api_the_last_event_with_usage_counts():
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 0}}}
    usage = {"input_tokens": 1, "cache_read_input_tokens": 8, "output_tokens": 5}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    events = (
        event("message_start", start),
        event("message_delta", delta),
        event("message_stop", {"type": "message_stop"}),
    )
    assert read(*events) == Usage(9, 5, 8)
    assert read(*[bytes([byte]) for byte in b"".join(events)]) == Usage(9, 5, 8)
