"""Driving sessions: open between them, closed within one."""

from loadtests.demo.driver import drive, tally_of
from loadtests.workloads.sessions import Session, Turn


def user(said: str) -> dict[str, str]:
    return {"role": "user", "content": said}


async def test_later_turns_hold_the_replies_that_were_received(stand_in):
    turns = (Turn((user("one"),), 1), Turn((user("two"),), 2), Turn((user("three"),), 1))
    sessions = [Session("s", "chat", turns)]
    tally = tally_of(sessions)
    await drive(sessions, stand_in.url, "m", tally)
    assert [[m["content"] for m in body["messages"]] for body in stand_in.bodies] == [
        ["one"],
        ["one", " w0", "two"],
        ["one", " w0", "two", " w0 w1", "three"],
    ]
    assert (tally.total, tally.sent, len(tally.outcomes), tally.in_flight) == (3, 3, 3, 0)


async def test_a_session_never_has_two_requests_at_once(stand_in):
    sessions = [Session("s", "chat", tuple(Turn((user("x"),), 1) for _ in range(5)))]
    await drive(sessions, stand_in.url, "m", tally_of(sessions))
    assert stand_in.most_at_once == 1


async def test_sessions_do_not_wait_for_each_other(stand_in):
    sessions = [Session(f"s{n}", "chat", (Turn((user("x"),), 1),)) for n in range(8)]
    await drive(sessions, stand_in.url, "m", tally_of(sessions))
    assert stand_in.most_at_once > 1


async def test_a_broken_stream_is_counted_and_its_session_goes_on(stand_in):
    turns = (Turn((user("close early"),), 1), Turn((user("again"),), 1))
    sessions = [Session("s", "chat", turns)]
    tally = tally_of(sessions)
    await drive(sessions, stand_in.url, "m", tally)
    assert [outcome.answer.failure is None for outcome in tally.outcomes] == [False, True]
    assert tally.failures == 1


async def test_a_turn_waits_for_its_time(stand_in):
    sessions = [Session("s", "chat", (Turn((user("x"),), 1, not_before_s=0.05),))]
    tally = tally_of(sessions)
    await drive(sessions, stand_in.url, "m", tally)
    (late,) = tally.outcomes
    sessions = [Session("s", "chat", (Turn((user("x"),), 1), Turn((user("y"),), 1, pause_s=0.05)))]
    tally = tally_of(sessions)
    await drive(sessions, stand_in.url, "m", tally)
    first, second = tally.outcomes
    assert late.answer.failure is None
    assert second.answer.sent_s - first.answer.end_s >= 0.05
