"""Area A: a replica that is slow, full or hung takes nothing away from the others."""

import asyncio
import json
import time

import pytest

from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig
from tests.support.replicas import until

CHAT = "/v1/chat/completions"


async def answers(conversation):
    await conversation.answer(b"{}")


async def swallows(conversation):
    await conversation.client_left()


async def test_a007_error_answers_to_streams_give_their_place_back(replicas, gateways, chat):
    """40 stream=true requests get a slow 64 KiB 429 through 10 places; the 41st is served.

    Scaled: the body takes 40 ms instead of seconds.
    """
    told = json.dumps({"error": {"message": "x" * 65536}}).encode()
    well = False

    async def script(conversation):
        if well:
            await conversation.answer(b"{}")
            return
        head = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n"
        await conversation.send(head + b"content-length: %d\r\n\r\n" % len(told))
        for start in range(0, len(told), 16384):
            await conversation.send(told[start : start + 16384])
            await asyncio.sleep(0.01)

    [replica] = await replicas(script)
    gateway = await gateways(replica, limits={"max_in_flight": 10})
    body = chat(stream=True)
    full = await asyncio.gather(*[gateway.client.post(CHAT, json=body) for _ in range(40)])
    assert [answer.status_code for answer in full] == [429] * 40
    assert {answer.content for answer in full} == {told}
    assert {answer.headers["content-type"] for answer in full} == {"application/json"}
    assert await gateway.in_flight() == 0
    assert replica.connections <= 10 + 2, "connections of the answers were reused (probes: 1)"
    well = True
    assert (await gateway.client.post(CHAT, json=body)).status_code == 200
    assert await gateway.states() == ["ready"]


def two_models(hung, well, **changes):
    models = [
        {"name": "m", "replicas": [{"url": hung.url}]},
        {"name": "m2", "replicas": [{"url": well.url}]},
    ]
    return GatewayConfig.model_validate({"models": models, **changes})


async def test_a009_a_hung_model_takes_nothing_from_another(replicas, gateways, raw, chat):
    """500 requests hang at one model's replica; requests to another model are not slower."""
    [hung] = await replicas(swallows)
    [well] = await replicas(answers, model="m2")
    gateway = await gateways(two_models(hung, well))
    waiting = [asyncio.create_task(gateway.client.post(CHAT, json=chat())) for _ in range(500)]
    await until(lambda: len(hung.received) == 500, within_s=60.0)
    took_s = []
    for number in range(50):
        started = time.perf_counter()
        answer = await gateway.client.post(CHAT, json={**chat(str(number)), "model": "m2"})
        took_s.append(time.perf_counter() - started)
        assert answer.status_code == 200
    assert sorted(took_s)[45] < 0.1
    assert max(took_s) < 1.0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await until(lambda: _is_idle(gateway))


async def test_a009_when_a_hung_model_fills_the_gateway_the_wait_is_short(replicas, gateways, chat):
    """Where a hung model holds every place, others get 503 and Retry-After in queue_timeout_s."""
    [hung] = await replicas(swallows)
    [well] = await replicas(answers, model="m2")
    limits = {"max_in_flight": 20, "queue_timeout_s": 0.2}
    gateway = await gateways(two_models(hung, well), limits=limits)
    waiting = [asyncio.create_task(gateway.client.post(CHAT, json=chat())) for _ in range(20)]
    await until(lambda: len(hung.received) == 20)
    async with asyncio.timeout(1.0):
        answer = await gateway.client.post(CHAT, json={**chat(), "model": "m2"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await until(lambda: _is_idle(gateway))
    answer = await gateway.client.post(CHAT, json={**chat(), "model": "m2"})
    assert answer.status_code == 200


async def _is_ejected(gateway, replica):
    return (await gateway.replica(replica.name))["state"] == "ejected"


async def _is_idle(gateway):
    return await gateway.in_flight() == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a010_a_hung_replica_is_taken_out_and_nobody_waits_beyond_the_limit(
    replicas, gateways, chat, stream
):
    """A replica whose engine hangs costs `ejection.failures` requests a 504 each, then none.

    Scaled: a first-byte limit of 0.3 s instead of 5 s. The replica takes connections and still
    answers probes, so only the requests themselves can tell.
    """
    hung, well = await replicas(swallows, answers)
    config = config_from_flags([hung.url, well.url], policy="round_robin")
    out_for_long = {"failures": 3, "base_s": 60.0, "max_s": 60.0}
    gateway = await gateways(config, timeouts={"first_byte_s": 0.3}, ejection=out_for_long)
    answered = []
    for number in range(30):
        started = time.perf_counter()
        answer = await gateway.client.post(CHAT, json=chat(f"q{number}", stream=stream))
        answered.append((answer, time.perf_counter() - started))
    assert [answer.status_code for answer, _ in answered].count(504) == 3
    assert len(hung.received) == 3
    for answer, took_s in answered:
        assert took_s < 1.0
        if answer.status_code == 504:
            error = answer.json()["error"]
            assert (error["code"], error["reason"]) == (504, "replica_timeout")
            assert answer.headers["content-type"] == "application/json"
        else:
            assert (answer.status_code, answer.content) == (200, b"{}")
    well_s = sorted(took_s for answer, took_s in answered if answer.status_code == 200)
    assert well_s[int(0.95 * len(well_s))] < 0.1, "the other replica is as fast as ever"
    assert (await gateway.replica(hung.name))["state"] == "ejected"
    assert (await gateway.replica(well.name))["state"] == "ready"
    assert await gateway.in_flight() == 0


async def test_a010_a_stopped_process_is_taken_out_by_its_probes(replicas, gateways, chat):
    """A stopped process (its kernel still takes connections) is out within failed probes."""
    hung, well = await replicas(answers, answers)
    timing = {"interval_s": 0.05, "timeout_s": 0.2, "failures_to_eject": 3}
    gateway = await gateways(hung, well, health=timing)

    async def stopped(conversation):
        await conversation.client_left()

    hung.script, hung._probe = stopped, stopped
    await until(lambda: _is_ejected(gateway, hung), within_s=3.0)
    for number in range(20):
        answer = await gateway.client.post(CHAT, json=chat(f"q{number}"))
        assert (answer.status_code, answer.headers["x-warmroute-replica"]) == (200, well.name)
