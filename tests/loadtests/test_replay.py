"""Reading real logs and fitting them into a run."""

import json
import re
from pathlib import Path

import pytest

from loadtests.workloads import log_fields, pace, replay
from loadtests.workloads.sessions import Session, Turn

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def write(path: Path, *rows: dict | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def flat(at: float, text: str, session: str = "s", output: str = "yes") -> dict:
    """A call as LMCache's agent traces have it."""
    return {"timestamp": at, "input": text, "output": output, "session_id": session}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("body beside a time", {"timestamp": 5, "session_id": "a", "body": {"messages": CHAT}}),
        ("body as text", {"ts": 5, "session": "a", "request": json.dumps({"messages": CHAT})}),
        ("the body's own fields", {"created": 5, "user": "a", "messages": CHAT}),
        ("messages as input", {"time": "5", "conversation_id": "a", "input": CHAT}),
        ("user in the body", {"arrival_time": 5, "body": {"messages": CHAT, "user": "a"}}),
    ],
)
def test_a_chat_body_is_found_whatever_the_fields_are_called(name, row):
    line = log_fields.parse(json.dumps(row))
    assert (line.time, line.session, line.messages) == (5.0, "a", tuple(CHAT)), name


def test_a_time_may_be_iso_8601():
    row = {"timestamp": "1970-01-01T00:01:00Z", "messages": CHAT}
    assert log_fields.parse(json.dumps(row)).time == 60.0


def test_flat_text_becomes_one_user_message():
    line = log_fields.parse(json.dumps(flat(5, "Hello\n\nthere")))
    assert line.messages == ({"role": "user", "content": "Hello\n\nthere"},)
    assert line.num_output_chars == 3


def test_tools_are_kept_and_sampling_is_not():
    body = {"messages": CHAT, "tools": [{"type": "function"}], "n": 4, "max_tokens": 9}
    line = log_fields.parse(json.dumps({"time": 1, "body": body}))
    assert line.extras == {"tools": [{"type": "function"}], "tool_choice": "none"}
    assert line.max_tokens == 9


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("four", 4),
        ({"choices": [{"message": {"content": "four"}}]}, 4),
        ({"choices": [{"message": {"content": None}}]}, 0),
        (None, None),
    ],
)
def test_the_length_of_the_recorded_answer_is_known(output, expected):
    row = {"timestamp": 1, "messages": CHAT, "response": output}
    assert log_fields.parse(json.dumps(row)).num_output_chars == expected


def test_calls_of_a_session_are_ordered_by_time_across_files(tmp_path: Path):
    write(tmp_path / "b.jsonl", flat(30e6, "late", "x"), flat(10e6, "first", "x"))
    write(tmp_path / "a.jsonl", flat(20e6, "second", "x"), flat(15e6, "other", "y"))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "notes.txt").write_text("not a log")
    log = replay.read(tmp_path)
    said = {s.session_id: [t.messages[0]["content"] for t in s.turns] for s in log.sessions}
    assert said == {"x": ["first", "second", "late"], "y": ["other"]}
    assert [session.start_s for session in log.sessions] == [0.0, 5e6]
    assert (log.num_calls, log.num_too_long) == (4, 0)


def test_without_session_ids_a_file_of_a_folder_is_a_session(tmp_path: Path):
    row = {"timestamp": 1, "messages": CHAT}
    write(tmp_path / "a.jsonl", row, row)
    assert [session.session_id for session in replay.read(tmp_path).sessions] == ["a"]
    assert len(replay.read(tmp_path / "a.jsonl").sessions) == 2


def test_answers_are_as_long_as_recorded_within_reason(tmp_path: Path):
    path = write(
        tmp_path / "a.jsonl",
        flat(1, "a", output=""),
        flat(2, "b", output="x" * 20),
        flat(3, "c", output="x" * 2000),
    )
    (session,) = replay.read(path).sessions
    assert [turn.max_tokens for turn in session.turns] == [1, 8, 16]


def test_prompts_over_the_context_window_are_left_out_and_counted(tmp_path: Path):
    log = replay.read(write(tmp_path / "a.jsonl", flat(1, "a"), flat(2, "x" * 50_000)))
    assert (log.num_calls, log.num_too_long) == (1, 1)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{not json", "the line is not JSON"),
        ("[1]", "not an object"),
        ('{"messages": [{"role": "user"}]}', "there is no time"),
        ('{"timestamp": "noon", "messages": []}', "'noon' is neither a number nor ISO 8601"),
        ('{"timestamp": 1, "hash_ids": [1]}', "there is no prompt"),
        ('{"timestamp": 1, "messages": ["hi"]}', "there is no prompt"),
        ('{"timestamp": 1, "body": "{"}', "the request body is not JSON"),
    ],
)
def test_a_line_that_is_no_call_is_named_with_its_number(tmp_path: Path, line, says):
    path = write(tmp_path / "a.jsonl", flat(1, "fine"), line)
    with pytest.raises(replay.LogError) as raised:
        replay.read(path)
    text = str(raised.value)
    assert text.startswith(f"{path}:2: ")
    assert says in text
    assert "\n" not in text


def test_what_cannot_be_a_log_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "image.jsonl").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "empty").mkdir()
    blank = write(tmp_path / "blank.jsonl", "")
    for path, says in (
        (tmp_path / "gone", "no such file or folder"),
        (tmp_path / "empty", "no .jsonl or .ndjson file in this folder"),
        (blank, "no calls in 1 file"),
        (tmp_path / "image.jsonl", "cannot be read as text"),
    ):
        with pytest.raises(replay.LogError, match=re.escape(says)):
            replay.read(path)


def session(name: str, *times: float, text: str = "x" * 400) -> Session:
    turns = tuple(
        Turn(({"role": "user", "content": name + text * (n + 1)},), 1, not_before_s=t, fresh=True)
        for n, t in enumerate(times)
    )
    return Session(name, "replay", turns)


def test_sessions_are_picked_evenly_and_a_larger_pick_holds_a_smaller_one():
    sessions = [session(f"s{n}", n) for n in range(8)]

    def picked(count: int) -> list[int]:
        return [sessions.index(item) for item in replay.pick(sessions, count)]

    assert [picked(count) for count in (1, 2, 4, 8, 99)] == [
        [0],
        [0, 4],
        [0, 2, 4, 6],
        list(range(8)),
        list(range(8)),
    ]
    assert all(set(picked(n)) < set(picked(n + 1)) for n in range(1, 8))


def test_starts_fill_the_first_part_and_pauses_the_rest_of_a_run():
    log = [session("a", 0, 50, 100), session("b", 200), session("c", 400, 450)]
    rescaled = replay.rescale(log, seconds=10)
    times = [[round(t.not_before_s, 6) for t in item.turns] for item in rescaled]
    # Starts over 4 s; the longest session, 100 units, over the other 6 s.
    assert times == [[0.0, 3.0, 6.0], [2.0], [4.0, 7.0]]
    assert [t.messages for s in rescaled for t in s.turns] == [
        t.messages for s in log for t in s.turns
    ]


def test_an_idle_night_in_a_log_is_cut_short():
    log = [session("a", 0), session("b", 10), session("c", 20), session("d", 100_000)]
    starts = [item.start_s for item in replay.rescale(log, seconds=10)]
    assert starts == pytest.approx([0.0, 0.8, 1.6, 4.0])


def test_a_log_of_one_instant_can_be_replayed():
    assert [s.start_s for s in replay.rescale([session("a", 7), session("b", 7)], 10)] == [0, 0]


def test_the_work_of_round_robin_counts_each_prefix_once_a_replica():
    calls = [session("a", 0), session("a", 1), session("a", 2)]  # the same 401 characters thrice
    whole = 401 / replay.CHARS_PER_TOKEN
    rest = 1 / replay.CHARS_PER_TOKEN
    assert pace.round_robin_misses(calls, num_replicas=1) == [[whole], [rest], [rest]]
    assert pace.round_robin_misses(calls, num_replicas=3) == [[whole], [whole], [whole]]


def test_a_session_is_cut_where_its_calls_cannot_follow_each_other_in_time():
    # 1,600 tokens more with every call: at 1,000 a second and as much waiting, 3.2 s each.
    (cut,) = pace.choose([long_session(20)], 20, 1, prefill_tokens_per_s=1_000).sessions
    # Calls begin within 0.6 * 20 s: at 0, 3.25, 6.5 and 9.75 s.
    assert len(cut.turns) == 4


def long_session(num_calls: int) -> Session:
    texts = ["".join(f"{n:03}-" * 1000 for n in range(calls + 1)) for calls in range(num_calls)]
    turns = tuple(
        Turn(({"role": "user", "content": text},), 1, not_before_s=at, fresh=True)
        for at, text in enumerate(texts)
    )
    return Session("long", "replay", turns)


def test_a_short_log_makes_a_short_run_and_a_long_one_is_cut():
    log = [session(f"s{n}", n, text=f"{n:03}-" * 1000) for n in range(64)]  # 1,600 tokens each
    short = pace.choose(log[:8], 30, num_replicas=2, prefill_tokens_per_s=100)
    assert (len(short.sessions), short.seconds) == (3, pytest.approx(26.7, abs=0.1))
    fast = pace.choose(log[:8], 30, num_replicas=2, prefill_tokens_per_s=10_000)
    assert (len(fast.sessions), fast.seconds) == (8, pace.MIN_SECONDS)
    cut = pace.choose(log, 30, num_replicas=2, prefill_tokens_per_s=1_000)
    assert len(cut.sessions) == 33
    assert cut.seconds <= 30
    assert len(pace.choose(log, 30, 2, prefill_tokens_per_s=1).sessions) == 1
