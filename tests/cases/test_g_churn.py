"""Area B's rules for retries once more, while replicas join and leave during the scenario."""

import asyncio
import contextlib
import time
from collections import Counter

import pytest

from tests.support.listed import churn, file_config, write_list
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
RETRY_AFTER_S = 1
EVENT = b'data: {"choices":[{"delta":{"role":"assistant","content":"x"}}]}\n\n'


async def answers(conversation):
    await conversation.answer(b"{}")


@pytest.fixture
async def churning(gateways, tmp_path):
    """Run a gateway over replicas that stay and others that come and go."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(staying, coming, **changes):
            path = tmp_path / "replicas.json"
            write_list(path, *staying)
            # In turn, so that whoever is there gets requests.
            policy = {"policies": {"turns": {"kind": "round_robin"}}, "default_policy": "turns"}
            config = file_config(path, **policy, **changes)
            gateway = await gateways(config, wait_ready=False)
            await until(lambda: _num_ready(gateway, len(staying)), "those that stay")
            await stack.enter_async_context(churn(path, staying, coming, every_s=0.3))
            return gateway

        yield start


async def _num_ready(gateway, number):
    return (await gateway.states()).count("ready") == number


def used(replicas):
    return all(replica.received for replica in replicas)


async def ask_until(condition, gateway, body_of, at_least):
    """Send requests one after the other until enough were sent and a condition holds."""
    answers_ = []
    async with asyncio.timeout(30.0):
        while len(answers_) < at_least or not condition():
            number = len(answers_)
            headers = {"x-request-id": f"r{number}"}
            answers_.append(await gateway.client.post(CHAT, json=body_of(number), headers=headers))
    return answers_


async def test_b045_kept_connections_that_close_cost_no_error_under_churn(replicas, churning, chat):
    """Every request meets a replica that closes kept connections when they are used: all succeed.

    Each id is processed once, also where its replica joined a moment ago or was about to leave.
    """
    processed = Counter()
    used_once = set()

    async def script(conversation):
        if conversation.writer in used_once:
            conversation.writer.close()
            return
        used_once.add(conversation.writer)
        processed[conversation.request.header(b"x-request-id")] += 1
        await conversation.answer(b"{}")

    fleet = await replicas(*[script] * 4)
    gateway = await churning(fleet[:2], fleet[2:])
    got = await ask_until(lambda: used(fleet), gateway, lambda n: chat(f"q{n}"), at_least=100)
    assert {answer.status_code for answer in got} == {200}
    assert set(processed.values()) == {1}
    assert len(processed) == len(got)


async def test_b047_a_broken_stream_is_never_begun_again_under_churn(replicas, churning, chat):
    """Replicas that join while a stream breaks do not get it; each stream ends with its error."""

    async def script(conversation):
        await conversation.start_stream()
        for _ in range(3):
            await conversation.chunk(EVENT)
        conversation.reset()

    fleet = await replicas(*[script] * 4)
    gateway = await churning(
        fleet[:2],
        fleet[2:],
        retries={"max_tries": 3, "budget_ratio": 1.0},
        ejection={"failures": 1_000},
    )
    body = chat(stream=True)
    got = await ask_until(lambda: used(fleet), gateway, lambda n: chat(f"q{n}", **body), 50)
    for answer in got:
        assert answer.status_code == 200
        assert answer.content.count(b'"role":"assistant"') == 3
        assert b"stream_broken" in answer.content
    assert sum(len(replica.received) for replica in fleet) == len(got)


async def test_b048_a_full_replica_hands_on_to_those_that_are_there_under_churn(
    replicas, churning, chat
):
    """One replica says 429 for ever: whoever is there serves, and it is not ejected."""

    async def full(conversation):
        extra = b"retry-after: %d\r\n" % RETRY_AFTER_S
        await conversation.answer(b"{}", status=b"429 Too Many Requests", extra=extra)

    fleet = await replicas(full, answers, answers, answers)
    gateway = await churning(fleet[:2], fleet[2:])
    began = time.monotonic()
    got = await ask_until(lambda: used(fleet), gateway, lambda n: chat(f"q{n}"), at_least=100)
    assert {answer.status_code for answer in got} == {200}
    most = 1 + (time.monotonic() - began) / RETRY_AFTER_S
    assert len(fleet[0].received) <= most, "it is passed over, and not asked for every request"
    assert (await gateway.replica(fleet[0].name))["state"] == "ready"


async def test_b049_a_fleet_that_says_503_meets_no_storm_and_recovers_under_churn(
    replicas, churning, chat
):
    """All say 503, also those that join: attempts stay within the budget, and all recover in 2 s.

    Scaled: 200 requests, 4 at once, instead of 10 s of 100 a second.
    """

    async def full(conversation):
        await conversation.answer(b"{}", status=b"503 Service Unavailable")

    fleet = await replicas(*[full] * 5)
    gateway = await churning(fleet[:3], fleet[3:], retries={"budget_ratio": 0.2})
    gate = asyncio.Semaphore(4)

    async def ask(number):
        async with gate:
            return await gateway.client.post(CHAT, json=chat(f"q{number}"))

    for answer in await asyncio.gather(*map(ask, range(200))):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    reserve = 10  # what may be sent again before requests have earned it
    assert sum(len(replica.received) for replica in fleet) <= 1.2 * 200 + reserve
    for replica in fleet:
        replica.script = answers
    well_at = time.monotonic()

    async def all_serve():
        got = [await gateway.client.post(CHAT, json=chat(f"p{n}")) for n in range(12)]
        return {answer.status_code for answer in got} == {200}

    await until(all_serve, within_s=2.0)
    assert time.monotonic() - well_at < 2.0
