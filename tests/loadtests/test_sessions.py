"""Sessions: when a turn is due, and the request that it becomes."""

import pytest

from loadtests.workloads.sessions import Session, Turn


def user(said: str) -> dict[str, str]:
    return {"role": "user", "content": said}


def test_a_request_is_a_streaming_chat_that_asks_for_usage():
    session = Session("s1", "chat", (Turn((user("hi"),), 7, extras={"tool_choice": "none"}),))
    request = session.request(0, [], "m", at_s=1.5)
    assert (request.at_s, request.session_id, request.kind) == (1.5, "s1", "chat")
    assert request.path == "/v1/chat/completions"
    assert request.body == {
        "tool_choice": "none",
        "model": "m",
        "messages": [user("hi")],
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_tool_call_is_put_on_the_reply_that_made_it():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c", "content": "42"}
    turns = (Turn((user("go"),), 1), Turn((result,), 1, tool_calls=(call,)))
    body = Session("s", "agent", turns).request(1, ["I call f."], "m", 0.0).body
    assert body["messages"] == [
        user("go"),
        {"role": "assistant", "content": "I call f.", "tool_calls": [call]},
        result,
    ]


def test_a_fresh_turn_carries_nothing_over():
    turns = (Turn((user("a"),), 1), Turn((user("b"),), 1, fresh=True), Turn((user("c"),), 1))
    session = Session("s", "replay", turns)
    contents = [m["content"] for m in session.request(2, ["A", "B"], "m", 0.0).body["messages"]]
    assert contents == ["b", "B", "c"]


def test_embeddings_send_their_texts():
    session = Session("s", "embeddings", (Turn((user("a"), user("b")), 1),))
    request = session.request(0, [], "m", 0.0)
    assert (request.path, request.body) == ("/v1/embeddings", {"model": "m", "input": ["a", "b"]})


@pytest.mark.parametrize(
    ("name", "index", "last_end_s", "expected_s"),
    [
        ("the first turn has its own time", 0, 99.0, 2.0),
        ("think time counts from the reply", 1, 5.0, 5.5),
        ("not before its time in the log", 2, 6.0, 9.0),
        ("nor before the reply", 2, 11.0, 11.0),
    ],
)
def test_a_turn_is_due_after_the_reply_and_not_before_its_time(name, index, last_end_s, expected_s):
    turns = (
        Turn((user("a"),), 1, not_before_s=2.0),
        Turn((user("b"),), 1, pause_s=0.5),
        Turn((user("c"),), 1, not_before_s=9.0),
    )
    session = Session("s", "chat", turns)
    assert session.start_s == 2.0
    assert session.due_s(index, last_end_s) == expected_s, name
