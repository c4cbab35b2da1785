"""Area A: what was booked on a replica is given back, whatever ended the request."""

import asyncio
import json

import pytest

from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig
from gateway.prompt.prepare import Preparer
from routing.load import LoadBook
from routing.types import ReplicaLoad
from tests.support.clients import post
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
# So that all requests of a burst reach the replica: being taken out is another case.
NEVER_EJECTED = {"failures": 1_000_000}


async def answers(conversation):
    await conversation.answer(b"{}")


async def closes_without_a_byte(conversation):
    conversation.writer.close()


async def resets_after_two_events(conversation):
    await conversation.start_stream()
    await conversation.chunk(EVENT)
    await conversation.chunk(EVENT)
    conversation.reset()


async def burst(gateway, body, number, at_once=20):
    """Send `number` requests, some at once; return the statuses."""
    gate = asyncio.Semaphore(at_once)

    async def one():
        async with gate:
            return (await gateway.client.post(CHAT, json=body)).status_code

    return await asyncio.gather(*[one() for _ in range(number)])


class Lowest:
    """Looks at the in-flight count of the whole gateway while it runs, as operators see it."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.seen = []

    async def __aenter__(self):
        self.task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert self.seen
        assert min(self.seen) >= 0

    async def _look(self):
        while True:
            self.seen.append(await self.gateway.in_flight())
            await asyncio.sleep(0.005)


async def assert_is_as_if_never_used(gateway, replica, chat):
    """The replica's load is what a decision sees of a replica that never got a request."""
    status = await gateway.replica(replica.name)
    assert (status["in_flight"], status["outstanding_prefill_s"]) == (0, 0.0)
    await until(lambda: _is_ready(gateway, replica), "the replica's return")
    explained = (await gateway.admin.post("/admin/explain", json=chat())).json()
    [candidate] = explained["candidates"]
    assert (candidate["in_flight"], candidate["outstanding_prefill_s"]) == (0, 0.0)


async def _is_ready(gateway, replica):
    return (await gateway.replica(replica.name))["state"] == "ready"


@pytest.mark.parametrize(
    ("script", "stream", "status"),
    [(closes_without_a_byte, False, 502), (resets_after_two_events, True, 200)],
    ids=["no_byte", "reset"],
)
async def test_a003_failures_of_a_replica_leave_nothing_in_its_books(
    replicas, gateways, chat, script, stream, status
):
    """200 requests that the replica fails, before or after the answer began, leave no load."""
    [replica] = await replicas(script)
    gateway = await gateways(replica, ejection=NEVER_EJECTED)
    async with Lowest(gateway):
        statuses = await burst(gateway, chat(stream=stream), 200)
    assert set(statuses) == {status}
    assert len(replica.received) == 200
    await assert_is_as_if_never_used(gateway, replica, chat)


async def test_a003_refused_connections_leave_nothing_in_the_books(replicas, gateways, chat):
    """200 requests to a replica that refuses connections leave no load on it."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, ejection=NEVER_EJECTED)
    port = replica.port
    await replica.stop()
    async with Lowest(gateway):
        statuses = await burst(gateway, chat(), 200)
    assert set(statuses) == {503}
    await replica.start(port)
    await assert_is_as_if_never_used(gateway, replica, chat)


@pytest.mark.parametrize("octet", [0x00, 0x01, 0x0D, 0x7F], ids=hex)
async def test_a005a_a_header_that_no_hop_may_carry_is_the_clients_fault(
    replicas, gateways, raw, chat, octet
):
    """A header value with a control character is a 400, 100 times, and nothing stays booked."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    for _ in range(100):
        client = await raw(gateway)
        await client.send(post(CHAT, chat(), f"x-name: a{chr(octet)}b"))
        assert (await client.answer()).status == 400
        client.leave()
    assert replica.received == []
    await assert_is_as_if_never_used(gateway, replica, chat)


@pytest.mark.parametrize("value", [b"M\xfcnchen", "北京".encode(), b"\xff\xfe"], ids=repr)
async def test_a005a_a_header_beyond_ascii_cannot_fail_after_the_booking(
    replicas, gateways, raw, chat, value
):
    """Header values are bytes here: obs-text (RFC 9110, 5.5) passes, nothing is left to refuse."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    client = await raw(gateway)
    for _ in range(100):
        await client.send(post(CHAT, chat(), f"x-name: {value.decode('latin-1')}"))
        assert (await client.answer()).status == 200
    assert {request.header(b"x-name") for request in replica.received} == {value}
    await assert_is_as_if_never_used(gateway, replica, chat)


async def test_a005b_no_place_in_time_is_a_503_and_nothing_stays_booked(replicas, gateways, chat):
    """Requests that get no place at the replicas end with 503 and Retry-After, 100 times.

    There is no connection pool to run dry here; limits.max_in_flight is what a request waits for.
    """
    release = asyncio.Event()

    async def script(conversation):
        await release.wait()
        await conversation.answer(b"{}")

    [replica] = await replicas(script)
    limits = {"max_in_flight": 1, "queue_requests": 1000, "queue_timeout_s": 0.1}
    gateway = await gateways(replica, limits=limits)
    holder = asyncio.create_task(gateway.client.post(CHAT, json=chat()))
    await until(lambda: replica.received)
    refused = await asyncio.gather(
        *[gateway.client.post(CHAT, json=chat(str(n))) for n in range(100)]
    )
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "queue_timeout")
        assert int(answer.headers["retry-after"]) >= 1
    assert await gateway.in_flight() == 1
    release.set()
    assert (await holder).status_code == 200
    assert len(replica.received) == 1
    await assert_is_as_if_never_used(gateway, replica, chat)


async def test_a005c_a_client_that_leaves_during_tokenization_costs_the_replica_nothing(
    replicas, gateways, raw, chat, monkeypatch
):
    """100 clients leave while their prompts are tokenized: nothing is sent, nothing is booked."""
    tokenizing = 0
    never = asyncio.Event()

    async def stuck(self, *_):
        nonlocal tokenizing
        tokenizing += 1
        await never.wait()

    monkeypatch.setattr(Preparer, "prepare", stuck)
    [replica] = await replicas(answers)
    config = config_from_flags([replica.url], "loadtests/demo_model")
    gateway = await gateways(config)
    clients = [await raw(gateway) for _ in range(100)]
    for client in clients:
        await client.send(post(CHAT, chat()))
    await until(lambda: tokenizing == 100)
    for number, client in enumerate(clients):
        client.leave("rst" if number % 2 else "fin")
    await until(lambda: len(gateway.requests()) == 100)
    assert {line["status"] for line in gateway.requests()} == {499}
    assert replica.received == []
    assert await gateway.in_flight() == 0


def test_a006_a_replica_that_comes_back_under_its_name_starts_from_zero():
    """Streams of a removed replica end against its old account, not against the new one's."""
    book = LoadBook()
    old = [book.begin("r1", 0.5, 100, now=0.0) for _ in range(10)]
    book.begin("r2", 0.1, 10, now=0.0)  # a replica that was never announced is simply new
    book.forget("r1")
    assert book.snapshot("r1", 1.0) == ReplicaLoad()
    new = [book.begin("r1", 0.0, 7, now=1.0) for _ in range(3)]
    for lease in old:
        book.first_token(lease, 1.5)
        assert book.end(lease)
        assert not book.end(lease)
    assert book.snapshot("r1", 2.0) == ReplicaLoad(3, 0.0, 21)
    for lease in new:
        book.end(lease)
    assert book.snapshot("r1", 3.0) == ReplicaLoad()
    assert book.total_in_flight() == 1


async def test_a006_a_replica_that_restarts_counts_only_its_own_streams(replicas, gateways, chat):
    """A replica dies with 10 open streams and is back at its address: only new streams count."""
    release = asyncio.Event()

    async def script(conversation):
        await conversation.start_stream()
        await conversation.chunk(EVENT)
        await release.wait()
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(replica)
    port = replica.port

    def open_streams(number):
        body = chat(stream=True)
        return [asyncio.create_task(gateway.client.post(CHAT, json=body)) for _ in range(number)]

    old = open_streams(10)
    await until(lambda: _in_flight_is(gateway, 10))
    await replica.stop()
    broken = await asyncio.gather(*old)
    assert all(b"stream_broken" in answer.content for answer in broken)
    await replica.start(port)
    await until(lambda: _is_ready(gateway, replica))
    async with Lowest(gateway) as looking:
        new = open_streams(3)
        await until(lambda: _in_flight_is(gateway, 3))
        release.set()
        assert [answer.content for answer in await asyncio.gather(*new)] == [EVENT] * 3
    assert max(looking.seen) == 3
    assert await gateway.in_flight() == 0
    assert not [line for line in gateway.log if line["event"] == "internal_error"], json.dumps(
        gateway.log
    )


async def _in_flight_is(gateway, number):
    return await gateway.in_flight() == number


async def test_a006_replicas_that_come_and_go_under_traffic_keep_their_books(
    replicas, gateways, chat, tmp_path
):
    """R2 is found, R1 removed with 10 open streams and found again, while requests flow.

    Nothing is unknown or negative, and R1's load counts its new streams only. Scaled: R1 is back
    at once instead of after 1 s; requests flow in a closed loop instead of 50 a second.
    """
    release = asyncio.Event()

    async def script(conversation):
        if json.loads(conversation.request.body).get("stream"):
            await conversation.start_stream()
            await conversation.chunk(EVENT)
            await release.wait()
            await conversation.end()
        else:
            await conversation.answer(b"{}")

    one, two = await replicas(script, script)
    listed = tmp_path / "replicas.yaml"
    found = {"kind": "file", "path": str(listed), "interval_s": 0.02}

    async def fleet_is(*expected):
        found = {r["id"]: r["state"] for r in (await gateway.status())["models"][0]["replicas"]}
        return found == {replica.name: "ready" for replica in expected}

    def streams(number):
        body = chat(stream=True)
        return [asyncio.create_task(gateway.client.post(CHAT, json=body)) for _ in range(number)]

    listed.write_text(f"- {one.url}\n")
    config = {"models": [{"name": "m", "discovery": [found]}]}
    gateway = await gateways(GatewayConfig.model_validate(config), wait_ready=False)
    await until(lambda: fleet_is(one))
    old = streams(10)
    await until(lambda: _in_flight_is(gateway, 10))
    statuses = []
    flowing = asyncio.create_task(_flow(gateway, chat, statuses))
    async with Lowest(gateway):
        listed.write_text(f"- {one.url}\n- {two.url}\n")
        await until(lambda: fleet_is(one, two))
        listed.write_text(f"- {two.url}\n")
        await until(lambda: fleet_is(two))
        listed.write_text(f"- {one.url}\n- {two.url}\n")
        await until(lambda: fleet_is(one, two))
        flowing.cancel()
        await asyncio.gather(flowing, return_exceptions=True)
        await until(lambda: _in_flight_is(gateway, 0), "the old streams are the old replica's")
        new = streams(4)
        await until(lambda: _in_flight_is(gateway, 4))
        release.set()
        answers = await asyncio.gather(*old, *new)
    assert [answer.content for answer in answers] == [EVENT] * 14
    assert await gateway.in_flight() == 0
    assert set(statuses) == {200}
    assert not [line for line in gateway.log if line["event"] == "internal_error"]


async def _flow(gateway, chat, statuses):
    number = 0
    while True:
        number += 1
        answer = await gateway.client.post(CHAT, json=chat(f"q{number}"))
        statuses.append(answer.status_code)
