"""Area G: probes that need a key, and replicas that become ready without any news about them."""

import asyncio

from gateway.config.models import GatewayConfig
from tests.support.api_replicas import says_hello
from tests.support.engines import Engine
from tests.support.replicas import until

UPSTREAM_KEY, CLIENT_KEY = "engine-key-1234567890", "client-key-1234567890"


async def test_g135_probes_and_requests_show_the_upstream_key(engines, gateways):
    """Without the key the engine answers 401 to everything, its health included."""

    async def guarded(conversation):
        shown = conversation.request.header(b"authorization")
        if shown == f"Bearer {UPSTREAM_KEY}".encode():
            await says_hello(conversation)
        else:
            await conversation.answer(b'{"error":"Unauthorized"}', status=b"401 Unauthorized")

    [engine] = await engines(Engine(guarded, key=UPSTREAM_KEY))
    model = {"name": "m", "replicas": [{"url": engine.url}], "api_key": UPSTREAM_KEY}
    keys = [{"name": "team", "key": CLIENT_KEY}]
    config = GatewayConfig.model_validate({"models": [model], "auth": {"keys": keys}})
    gateway = await gateways(config)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    answer = await gateway.client.post(
        "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {CLIENT_KEY}"}
    )
    assert answer.status_code == 200
    shown = [request.header(b"authorization") for request in (*engine.probes, *engine.received)]
    assert set(shown) == {f"Bearer {UPSTREAM_KEY}".encode()}, "never the client's"
    asked = {request.line.split()[1] for request in engine.probes}
    assert {b"/health", b"/v1/models", b"/metrics"} <= asked
    page = (await gateway.admin.get("/metrics")).text
    told = f"{answer.headers}{answer.text}{await gateway.status()}{gateway.log}{page}"
    assert UPSTREAM_KEY not in told
    assert CLIENT_KEY not in told


async def test_g135_without_the_key_the_state_says_what_is_missing(engines, gateways):
    [engine] = await engines(Engine(key=UPSTREAM_KEY))
    gateway = await gateways(engine, wait_ready=False)

    async def refused():
        return (await gateway.replica(engine.name))["reason"] == "status_401"

    await until(refused)
    assert await gateway.states() == ["starting"]


LOADING = {"/health": b"503 Service Unavailable"}


class Held:
    """A script that answers nobody before `release`."""

    def __init__(self):
        self._released = asyncio.Event()

    def release(self):
        self._released.set()

    async def __call__(self, conversation):
        await self._released.wait()
        await says_hello(conversation)


async def test_g172_a_replica_that_was_loading_gets_its_share_with_the_next_probe(
    engines, gateways, chat
):
    """90 s of loading are some probes here, at 0.05 s; a hundred requests are sixty."""
    held = Held()
    loading = Engine(held, statuses=LOADING, models=[])
    fleet = await engines(Engine(held), Engine(held), loading)
    config = GatewayConfig.model_validate(
        {"models": [{"name": "m", "replicas": [{"url": engine.url} for engine in fleet]}]}
    )
    gateway = await gateways(config, wait_ready=False)
    await until(lambda: _count(gateway, "ready", 2))
    await until(lambda: loading.asked["/health"] >= 5, "probes of the loading replica")
    sent = [asyncio.create_task(_ask(gateway, chat, number)) for number in range(30)]
    await until(lambda: sum(len(engine.received) for engine in fleet) == 30)
    assert loading.received == [], "nothing while it loads"
    loading.statuses, loading.models = {}, fleet[0].models
    probes = loading.asked["/health"]
    await until(lambda: _count(gateway, "ready", 3))
    assert loading.asked["/health"] <= probes + 2, "one probe found it; another may have begun"
    sent += [asyncio.create_task(_ask(gateway, chat, number)) for number in range(30, 60)]
    await until(lambda: sum(len(engine.received) for engine in fleet) == 60)
    cap = 1.25 * 60 / 3 + 2
    assert 60 - 2 * cap <= len(loading.received) <= cap, "its share, and no flood"
    held.release()
    assert {answer.status_code for answer in await asyncio.gather(*sent)} == {200}


async def test_g172_a_replica_that_was_away_comes_back_by_itself(engines, gateways, chat):
    """Ready, not ready, ready: the set of replicas is the same all the time."""
    fleet = await engines(Engine(), Engine())
    gateway = await gateways(*fleet, health={"interval_s": 0.05, "failures_to_eject": 1})
    flaky = fleet[1]
    for _ in range(2):
        flaky.statuses = LOADING
        await until(lambda: _count(gateway, "ejected", 1))
        before = len(flaky.received)
        for number in range(6):
            assert (await _ask(gateway, chat, number)).status_code == 200
        assert len(flaky.received) == before
        flaky.statuses = {}
        await until(lambda: _count(gateway, "ready", 2))
        for number in range(20):
            await _ask(gateway, chat, number)
        assert len(flaky.received) > before


async def _count(gateway, state, number):
    return (await gateway.states()).count(state) == number


async def _ask(gateway, chat, number):
    return await gateway.client.post("/v1/chat/completions", json=chat(f"question {number}"))
