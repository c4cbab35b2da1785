"""Area B: a request is sent again only where nothing can have run, and never as a storm."""

import asyncio
import time
from collections import Counter

import pytest

from gateway.config.load import config_from_flags
from gateway.proxy.transport import Deadlines, HttpToolsTransport, Origin, UpstreamRequest
from tests.support.replicas import ScriptedReplica, until

CHAT = "/v1/chat/completions"
EVENT = b'data: {"choices":[{"delta":{"role":"assistant","content":"x"}}]}\n\n'
# What vLLM's server (uvicorn) waits on an idle connection, in seconds.
VLLM_KEEP_ALIVE_S = 5.0


async def answers(conversation):
    await conversation.answer(b"{}")


class ClosesOnReuse:
    """Answers the first request of a connection, and closes it on the next one, unanswered.

    So a close that crossed the request on the wire looks to a client; it is not processed.
    """

    def __init__(self, before_close=b""):
        self.used = set()
        self.processed = []
        self.before_close = before_close

    async def __call__(self, conversation):
        if conversation.writer in self.used:
            await conversation.send(self.before_close)
            conversation.writer.close()
            return
        self.used.add(conversation.writer)
        self.processed.append(conversation.request.header(b"x-request-id"))
        await conversation.answer(b"{}")


@pytest.mark.parametrize("stream", [False, True])
async def test_b045_a_kept_connection_that_closed_costs_no_error(replicas, gateways, chat, stream):
    """100 requests that each meet a closed kept connection all succeed; each id runs once."""
    script = ClosesOnReuse()
    [replica] = await replicas(script)
    gateway = await gateways(replica)
    for number in range(100):
        headers = {"x-request-id": f"r{number}"}
        answer = await gateway.client.post(CHAT, json=chat(stream=stream), headers=headers)
        assert answer.status_code == 200
    assert script.processed == [b"r%d" % number for number in range(100)]
    assert await gateway.states() == ["ready"]


async def test_b045_a_replica_that_closes_idle_connections_costs_no_error(replicas, gateways, chat):
    """Requests exactly at the replica's idle limit succeed, whoever is first, and run once.

    Scaled: a limit of 20 ms and 100 requests every 20 ms, instead of 5 s.
    """
    closing = {}
    processed = Counter()

    async def script(conversation):
        timer = closing.pop(conversation.writer, None)
        if timer is not None:
            timer.cancel()
        if conversation.writer.is_closing():
            return
        processed[conversation.request.header(b"x-request-id")] += 1
        await conversation.answer(b"{}")
        loop = asyncio.get_running_loop()
        closing[conversation.writer] = loop.call_later(0.02, conversation.writer.close)

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    statuses = []
    for number in range(100):
        headers = {"x-request-id": str(number)}
        answer = await gateway.client.post(CHAT, json=chat(), headers=headers)
        statuses.append(answer.status_code)
        await asyncio.sleep(0.02)
    assert statuses == [200] * 100
    assert set(processed.values()) == {1}
    assert len(processed) == 100


async def test_b045_our_idle_connections_expire_before_vllms():
    """A connection idle for nearly as long as vLLM keeps it is not used again."""
    now = 0.0
    replica = await ScriptedReplica(answers).start()
    transport = HttpToolsTransport(lambda: now)
    origin = Origin("127.0.0.1", replica.port)
    request = UpstreamRequest(b"POST", b"/v1/completions", [], b"{}")

    async def exchange():
        response = await transport.request(origin, request, Deadlines())
        while await response.read():
            pass
        response.close()

    await exchange()
    now = 1.0
    await exchange()
    assert replica.connections == 1, "a connection that is young enough is used again"
    now += 0.9 * VLLM_KEEP_ALIVE_S
    await exchange()
    assert replica.connections == 2
    transport.close()
    await replica.stop()


@pytest.mark.parametrize("sent", [b"HTTP/1.1 2", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_b045_a_kept_connection_that_began_to_answer_is_not_tried_again(
    replicas, gateways, chat, sent
):
    """One response byte on a reused connection means that the request may run: 502, no retry."""
    script = ClosesOnReuse(before_close=sent)
    [replica] = await replicas(script)
    gateway = await gateways(replica)
    assert (await gateway.client.post(CHAT, json=chat())).status_code == 200
    assert (await gateway.client.post(CHAT, json=chat())).status_code == 502
    assert len(replica.received) == 2


async def test_b045_a_fresh_connection_that_closes_is_not_tried_again(replicas, gateways, chat):
    """A close on a fresh connection may be a crash by this very request: 502, not tried again."""

    async def script(conversation):
        conversation.writer.close()

    fleet = await replicas(script, script)
    gateway = await gateways(*fleet)
    assert (await gateway.client.post(CHAT, json=chat())).status_code == 502
    assert sum(len(replica.received) for replica in fleet) == 1


@pytest.mark.parametrize("num_events", [1, 3])
async def test_b047_a_stream_that_broke_is_never_begun_again(replicas, gateways, chat, num_events):
    """After text was shown no other replica gets the request, whatever `retries` allows."""

    async def script(conversation):
        await conversation.start_stream()
        for _ in range(num_events):
            await conversation.chunk(EVENT)
        conversation.reset()

    fleet = await replicas(script, script)
    gateway = await gateways(*fleet, retries={"max_tries": 3, "budget_ratio": 1.0})
    answer = await gateway.client.post(CHAT, json=chat(stream=True))
    assert answer.status_code == 200
    assert answer.content.startswith(EVENT * num_events)
    assert answer.content.count(b'"role":"assistant"') == num_events
    assert b"stream_broken" in answer.content
    assert sum(len(replica.received) for replica in fleet) == 1


def is_full(status, retry_after=None):
    async def script(conversation):
        extra = b"retry-after: %b\r\n" % retry_after if retry_after else b""
        await conversation.answer(b'{"error":{"message":"full"}}', status=status, extra=extra)

    return script


BUSY = [b"429 Too Many Requests", b"503 Service Unavailable"]


@pytest.mark.parametrize("status", BUSY, ids=["429", "503"])
@pytest.mark.parametrize("stream", [False, True])
async def test_b048_a_full_replica_hands_on_to_a_free_one(replicas, gateways, chat, status, stream):
    """429 or 503 with Retry-After: 7 from the replica with the hot prefix: the other one serves.

    The full one is passed over for a while, is not ejected, and is not counted as a success.
    """
    fleet = await replicas(answers, answers)
    gateway = await gateways(*fleet)
    body = chat("hot prefix", stream=stream)
    hot_name = (await gateway.client.post(CHAT, json=body)).headers["x-warmroute-replica"]
    hot = next(replica for replica in fleet if replica.name == hot_name)
    other = next(replica for replica in fleet if replica is not hot)
    hot.script = is_full(status, b"7")
    for _ in range(20):
        answer = await gateway.client.post(CHAT, json=body)
        assert (answer.status_code, answer.headers["x-warmroute-replica"]) == (200, other.name)
    assert len(other.received) == 20
    assert len(hot.received) <= 3, "the hot prefix does not pin requests to it"
    assert await gateway.states() == ["ready", "ready"]
    assert await gateway.in_flight() == 0


async def test_b048_a_full_replica_is_asked_again_when_its_time_is_over(replicas, gateways, chat):
    """After Retry-After the replica with the hot prefix gets its requests again."""
    fleet = await replicas(answers, answers)
    gateway = await gateways(*fleet)
    hot_name = (await gateway.client.post(CHAT, json=chat())).headers["x-warmroute-replica"]
    hot = next(replica for replica in fleet if replica.name == hot_name)
    hot.script = is_full(BUSY[0], b"1")
    assert (await gateway.client.post(CHAT, json=chat())).status_code == 200
    hot.script = answers

    async def serves_again():
        answer = await gateway.client.post(CHAT, json=chat())
        return answer.headers["x-warmroute-replica"] == hot_name

    await until(serves_again)


@pytest.mark.parametrize("status", BUSY, ids=["429", "503"])
async def test_b048_a_full_answer_neither_heals_nor_harms(replicas, gateways, chat, status):
    """For ejection a 429 or 503 is no success: two failures, a 429 and a failure are three."""
    resets = 0

    async def script(conversation):
        nonlocal resets
        if resets == 2 and len(replica.received) == 3:
            await is_full(status)(conversation)
            return
        resets += 1
        conversation.reset()

    [replica] = await replicas(script)
    out_for_long = {"failures": 3, "base_s": 60.0, "max_s": 60.0}
    gateway = await gateways(replica, ejection=out_for_long)
    statuses = [(await gateway.client.post(CHAT, json=chat())).status_code for _ in range(3)]
    assert statuses == [502, 502, int(status[:3])]
    assert await gateway.states() == ["ready"], "not ejected by being full"
    assert (await gateway.client.post(CHAT, json=chat())).status_code == 502
    assert await gateway.states() == ["ejected"]


@pytest.mark.parametrize("retry_after", [b"2", None], ids=["said", "unsaid"])
async def test_b049_a_fleet_that_says_503_meets_no_storm_and_recovers(
    replicas, gateways, chat, retry_after
):
    """While all replicas say 503 attempts stay within the retry budget, and clients hear it soon.

    Once they are well requests are served within 2 s, and no replica is stuck. Scaled: 200
    requests, 4 at once, instead of 100 a second for 10 s.
    """
    fleet = await replicas(*[is_full(BUSY[1], retry_after)] * 3)
    gateway = await gateways(*fleet, retries={"budget_ratio": 0.2})
    gate = asyncio.Semaphore(4)
    asking = [_timed(gateway, chat(f"q{number}"), gate) for number in range(200)]
    for answer, took_s in await asyncio.gather(*asking):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == (retry_after or b"1").decode()
        assert took_s < 1.0
    assert sum(len(replica.received) for replica in fleet) <= 1.2 * 200
    for replica in fleet:
        replica.script = answers

    async def all_serve():
        answers = [await gateway.client.post(CHAT, json=chat(f"p{n}")) for n in range(12)]
        return {answer.status_code for answer in answers} == {200}

    await until(all_serve, within_s=2.0)
    assert await gateway.states() == ["ready"] * 3
    before = Counter({replica.name: len(replica.received) for replica in fleet})

    async def all_are_used():
        await gateway.client.post(CHAT, json=chat(f"{time.monotonic()}"))
        return all(len(replica.received) > before[replica.name] for replica in fleet)

    await until(all_are_used)


async def _timed(gateway, body, gate):
    async with gate:
        started = time.perf_counter()
        answer = await gateway.client.post(CHAT, json=body)
        return answer, time.perf_counter() - started


async def test_b049_connect_failures_stay_within_the_budget(replicas, gateways, chat):
    """Replicas that vanish together cause at most a share of retries, and one 503 a request."""
    fleet = await replicas(answers, answers, answers)
    config = config_from_flags([replica.url for replica in fleet])
    gateway = await gateways(config, health={"interval_s": 30.0}, retries={"budget_ratio": 0.0})
    for replica in fleet:
        await replica.stop()
    for number in range(30):
        async with asyncio.timeout(1.0):
            answer = await gateway.client.post(CHAT, json=chat(f"q{number}"))
        assert answer.status_code == 503
        assert answer.json()["error"]["reason"] == "no_eligible_replica"
    assert await gateway.in_flight() == 0
