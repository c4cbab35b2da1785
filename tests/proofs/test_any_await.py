"""Whatever is cancelled, wherever it waits: the lease ends once, the observer is told once.

The gateway runs without sockets (tests/support/asgi.py), and at its k-th suspension the client
leaves or the task is cancelled, as uvicorn does when its time to drain is over; for every k.
"""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.asgi import ERRORS, Answer, Client, assembled, chat, config_for

PLANS = {
    "stream": [Answer()],
    "stream_that_ends_late": [Answer(ends_late=True)],
    "whole": [Answer(stream=False, pieces=(b"{}",))],
    "nothing": [Answer(pieces=())],
    "refused_then_stream": [Answer("refused"), Answer()],
    "all_refused": [Answer("refused")],
    "timeout": [Answer("timeout")],
    "broken": [Answer("broken")],
    "bug": [Answer("bug")],
    "busy_then_stream": [Answer(503), Answer()],
    "all_busy": [Answer(429)],
    "busy_then_refused": [Answer(503), Answer("refused")],
    "no_first_byte": [Answer(pieces=("timeout",))],
    "breaks_at_once": [Answer(pieces=("broken",))],
    "breaks_later": [Answer(pieces=(b"data: 1\n\n", "broken"))],
    "idle_later": [Answer(pieces=(b"data: 1\n\n", b"data: 2\n\n", "timeout"))],
    "cut_whole": [Answer(stream=False, pieces=(b"{", "broken"))],
    "bug_later": [Answer(pieces=(b"data: 1\n\n", "bug"))],
    "error_of_the_engine": [Answer(400, stream=False, pieces=(b"{}",))],
    "gateway_error_below": [Answer(502, stream=False, pieces=(b"{}",))],
}
CONFIGS = {
    "plain": {},
    "guarded": {
        "auth": {"keys": [{"name": "a", "key": "sk-canary-key-1"}]},
        "isolation": {"by": "api_key"},
        "timeouts": {"total_s": 600.0, "heartbeat_s": 60.0},
        "cors": {"origins": ["*"]},
    },
}
HEADERS = ((b"authorization", b"Bearer sk-canary-key-1"), (b"origin", b"https://x.example"))


def client(registers=True, body=None):
    return Client(chat(stream=True) if body is None else body, HEADERS, registers)


@pytest.mark.parametrize("registers", [True, False], ids=["called_back", "watching"])
@pytest.mark.parametrize("act", ["cancel", "leave"])
@pytest.mark.parametrize("config", CONFIGS)
async def test_the_books_balance_whichever_await_is_the_last(config, act, registers):
    async with assembled(config_for(**CONFIGS[config])) as gateway:
        runs = 0
        for name, plan in PLANS.items():
            steps = await gateway.run(plan, client(registers))
            assert steps > 4, name
            for at in range(1, steps + 1):
                await gateway.run(plan, client(registers), {at: act})
                runs += 1
        assert runs > 120
        after = client(registers)
        await gateway.run([Answer()], after)
        assert (after.status, after.whole) == (200, True), "nothing was used up"


async def test_the_books_balance_for_bodies_that_are_refused():
    async with assembled(config_for()) as gateway:
        for body in (b"", b"{", chat(messages=[]), chat(model="unknown"), b"x" * 10):
            steps = await gateway.run([Answer()], client(body=body))
            for at in range(1, steps + 1):
                for act in ("cancel", "leave"):
                    await gateway.run([Answer()], client(body=body), {at: act})


@pytest.mark.parametrize("act", ["cancel", "leave"])
async def test_a_place_in_the_queue_is_given_back_from_every_await(act):
    config = config_for(limits={"max_in_flight": 1, "queue_requests": 1})
    async with assembled(config) as gateway:
        for frees_after in range(0, 14, 2):
            for at in range(1, 22):
                blocker = asyncio.create_task(_hold(gateway.admission, frees_after))
                await asyncio.sleep(0)
                await gateway.run([Answer()], client(), {at: act}, beside=blocker)


async def _hold(admission, turns):
    await admission.enter("other")
    for _ in range(turns):
        await asyncio.sleep(0)
    admission.leave()


async def test_an_answer_is_whole_cut_or_an_error_and_never_both():
    """What the client got at any point is a beginning of what it would have got."""
    async with assembled(config_for()) as gateway:
        # Who was busy a moment ago is passed over: then an answer depends on the one before.
        settled = {name: plan for name, plan in PLANS.items() if "busy" not in name}
        for name, plan in settled.items():
            full = client()
            steps = await gateway.run(plan, full)
            for at in range(1, steps + 1):
                for act in ("cancel", "leave"):
                    cut = client()
                    await gateway.run(plan, cut, {at: act})
                    assert full.answer.startswith(without_last_words(cut)), (name, at, act)
                    starts = [m for m in cut.sent if m["type"] == "http.response.start"]
                    assert len(starts) <= 1
                    refused = {503} if act == "cancel" else set()
                    assert cut.status in {0, full.status, *refused}, (name, at, act)


def without_last_words(cut):
    """Return an answer without what a gateway that stops says at its end, or in its place."""
    if b'"draining"' not in cut.answer:
        return cut.answer
    assert cut.whole
    return b"" if cut.status == 503 else cut.answer.rpartition(b"\n\ndata: ")[0]


pieces = st.lists(
    st.one_of(st.binary(max_size=4), st.sampled_from(sorted(ERRORS))), max_size=4
).map(tuple)
answers = st.builds(
    Answer,
    st.sampled_from([200, 200, 200, 400, 429, 500, 502, 503, *sorted(ERRORS)]),
    pieces,
    st.booleans(),
)
endings = st.tuples(
    st.lists(answers, min_size=1, max_size=3),
    st.booleans(),
    st.dictionaries(st.integers(1, 40), st.sampled_from(["cancel", "leave"]), max_size=3),
)


def test_a_few_hundred_generated_endings_balance():
    _run_generated(max_examples=30, a_batch=10)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ten_thousand_generated_endings_balance():
    _run_generated(max_examples=500, a_batch=40)


def _run_generated(max_examples, a_batch):
    """Run batches of generated endings, all of them on one gateway."""
    with asyncio.Runner() as runner:
        stack = assembled(config_for(**CONFIGS["guarded"]))
        gateway = runner.run(stack.__aenter__())
        num_endings = 0

        @given(st.lists(endings, min_size=a_batch // 2, max_size=a_batch))
        @settings(max_examples=max_examples, deadline=None)
        def balance(batch):
            nonlocal num_endings
            runner.run(_run_all(gateway, batch))
            num_endings += len(batch)

        try:
            balance()
        finally:
            runner.run(stack.__aexit__(None, None, None))
        assert num_endings >= max_examples * a_batch // 2


async def _run_all(gateway, batch):
    for plan, registers, acts in batch:
        await gateway.run(plan, client(registers), acts)
