"""Streams of a running gateway that cannot be followed, or meet a bug of ours."""

import pytest

from gateway.kvevents.translate import Translator
from tests.support.engines import Engine
from tests.support.gateways import all_ready
from tests.support.publishers import Publisher, stored
from tests.support.replicas import until

LEARN_AT_EVERY_PROBE = {"interval_s": 0.05, "timeout_s": 1.0, "metrics_interval_s": 0.05}
SIZE = 4


def tokens(num_blocks, first=0):
    return list(range(first, first + num_blocks * SIZE))


async def matched(gateway, ids, name):
    body = {"model": "m", "prompt": [*ids, 9999]}
    told = (await gateway.admin.post("/admin/explain?path=/v1/completions", json=body)).json()
    tiers = next(c for c in told["candidates"] if c["replica"] == name)["matched_tokens"]
    return tiers["L0"] // SIZE


def lines(gateway, event):
    return [line for line in gateway.log if line["event"] == event]


@pytest.fixture
async def publisher():
    publisher = await Publisher().start()
    yield publisher
    await publisher.stop()


async def following(gateways, engines, source):
    """Return a gateway, and an engine that says that it publishes there."""
    [engine] = await engines(Engine(block_size=SIZE, sources={"0": source}))
    return await gateways(engine, health=LEARN_AT_EVERY_PROBE), engine


async def contradiction(gateway, engine):
    return (await gateway.replica(engine.name))["contradictions"].get("kv_events")


@pytest.mark.parametrize(
    "endpoint", ["foo", "tcp://engine:*", "udp://10.0.0.1:5557", "tcp://\ud800:1"]
)
async def test_an_endpoint_that_cannot_be_used_is_told_and_predictions_go_on(
    gateways, engines, publisher, endpoint
):
    source = publisher.source() | {"endpoint": endpoint}
    gateway, engine = await following(gateways, engines, source)

    async def told():
        return await contradiction(gateway, engine)

    await until(told, "the report of the endpoint")
    assert f"its endpoint {endpoint!r} cannot be used: " in await told()
    gauge = f'warmroute_replica_contradiction{{fact="kv_events",replica="{engine.name}"'
    assert await gateway.metric(gauge) == 1
    assert len(lines(gateway, "replica_contradiction")) == 1
    assert lines(gateway, "task_crashed") == []
    body = {"model": "m", "prompt": [*tokens(3), 9999]}
    assert (await gateway.client.post("/v1/completions", json=body)).status_code == 200
    assert await matched(gateway, tokens(3), engine.name) == 3, "predicted"
    assert not (await gateway.replica(engine.name))["follows_events"]

    engine.sources = {"0": publisher.source()}
    engine.restart()
    await until(lambda: publisher.asked_from, "a replay from the endpoint that is right")

    async def is_well():
        return await contradiction(gateway, engine) is None

    await until(is_well, "the end of the report")


async def test_without_a_replay_endpoint_that_can_be_used_live_batches_are_followed(
    gateways, engines, publisher
):
    source = publisher.source() | {"replay_endpoint": "foo"}
    gateway, engine = await following(gateways, engines, source)

    async def told():
        return await contradiction(gateway, engine)

    await until(told, "the report of the endpoint")
    assert "its replay endpoint 'foo' cannot be used: Invalid argument" in await told()

    async def has_come():
        await publisher.send(stored([1, 2], tokens(2)))
        return await matched(gateway, tokens(2), engine.name) == 2

    await until(has_come, "a live batch")


async def test_a_bug_met_in_a_stream_is_told_and_the_stream_begins_anew(
    gateways, engines, publisher, monkeypatch
):
    # Long enough to look at what is known before the next replay begins.
    monkeypatch.setattr("gateway.background.FIRST_PAUSE_S", 1.0)
    publisher.keep(stored([1, 2], tokens(2)))
    gateway, engine = await following(gateways, engines, publisher.source())

    async def is_followed():
        return (await gateway.replica(engine.name))["follows_events"]

    await until(is_followed, "step")
    assert await matched(gateway, tokens(2), engine.name) == 2
    apply, broken = Translator.apply, stored([3], tokens(1, 500))

    def fail(self, event, now):
        if list(getattr(event, "hashes", ())) == [3]:
            raise RuntimeError(f"these are token ids: {tokens(1, 500)}")
        return apply(self, event, now)

    with monkeypatch.context() as patched:
        patched.setattr(Translator, "apply", fail)

        async def has_crashed():
            await publisher.send(broken)
            return lines(gateway, "task_crashed")

        [crash] = await until(has_crashed, "the crash")
        assert (crash["task"], crash["name"]) == ("kv_events", engine.name)
        assert crash["error"] == "RuntimeError"
        assert "in fail" in crash["traceback"]
        assert "501" not in str(crash)
        assert not await is_followed(), "not precise while it is away"
        assert await matched(gateway, tokens(2), engine.name) == 0, "nobody knows what changed"
    await until(is_followed, "step again")
    assert await matched(gateway, tokens(2), engine.name) == 2, "from the replay"
    assert await matched(gateway, tokens(1, 500), engine.name) == 1
    crashes = await gateway.metric('warmroute_task_crashes_total{task="kv_events"}')
    assert crashes >= 1
    assert len(lines(gateway, "task_crashed")) == 1, "once"
    assert await all_ready(gateway)
