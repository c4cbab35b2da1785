"""Probes over real sockets: what they cost a replica, what they notice, and when."""

import asyncio

import pytest

from gateway.config.models import GatewayConfig
from gateway.replicas.health import FIRST_PROBES_APART_S
from tests.support.engines import Balancer, Engine
from tests.support.replicas import until

# Facts are read again after an hour, so what is noticed earlier was noticed for another reason: no
# probe is late because the machine is busy, either.
ONLY_WHEN_IN_DOUBT = {"interval_s": 0.05, "timeout_s": 5.0, "metrics_interval_s": 3600.0}
AT_EVERY_PROBE = {"interval_s": 0.05, "timeout_s": 5.0, "metrics_interval_s": 0.01}


def fleet(*replicas, **fields):
    section = {"name": "m", "replicas": [{"url": replica.url} for replica in replicas], **fields}
    return GatewayConfig.model_validate({"models": [section]})


async def probed(engine, times=3, path="/health"):
    goal = engine.asked[path] + times
    await until(lambda: engine.asked[path] >= goal, f"{times} more of {path}")


def events(gateway, name):
    return [line for line in gateway.log if line["event"] == name]


async def test_a_healthy_replica_is_asked_for_its_health_alone(engines, gateways):
    [engine] = await engines(Engine())
    await gateways(fleet(engine), health=ONLY_WHEN_IN_DOUBT)
    before = +engine.asked
    await probed(engine, 5)
    assert {path for path in engine.asked if engine.asked[path] != before[path]} == {"/health"}


async def test_probes_use_one_kept_connection(engines, gateways):
    [engine] = await engines(Engine())
    await gateways(fleet(engine), health=ONLY_WHEN_IN_DOUBT)
    before = engine.connections
    await probed(engine, 5)
    assert engine.connections == before


async def test_what_the_replica_says_is_in_the_status(engines, gateways):
    [engine] = await engines(Engine(models=[{"id": "m", "root": "/m", "max_model_len": 8192}]))
    gateway = await gateways(fleet(engine))
    shown = await gateway.replica(engine.name)
    assert {key: shown[key] for key in ("models", "block_size", "num_blocks", "ranks")} == {
        "models": ["m"],
        "block_size": 16,
        "num_blocks": 1000,
        "ranks": [0],
    }
    assert (shown["version"], shown["hash_algorithm"]) == ("0.32.0", "sha256")
    assert (shown["max_model_len"], shown["shared_address"]) == (8192, None)


async def ask(gateway, text):
    messages = [{"role": "user", "content": text}]
    return await gateway.client.post(
        "/v1/chat/completions", json={"model": "m", "messages": messages}
    )


async def restarted_between_two_probes(engine):
    """Let another process listen there, so quickly that no probe finds nobody."""
    port = engine.port
    await probed(engine, 1)
    await engine.stop()
    engine.restart()
    await engine.start(port)


async def test_a_restart_between_two_probes_is_noticed_with_the_next_one(engines, gateways):
    [engine] = await engines(Engine())
    gateway = await gateways(fleet(engine), health={**ONLY_WHEN_IN_DOUBT, "interval_s": 0.3})
    before = engine.asked["/metrics"]
    await restarted_between_two_probes(engine)
    health = engine.asked["/health"]
    await until(lambda: engine.asked["/metrics"] > before)
    assert engine.asked["/health"] <= health + 2, "one probe; the next one may have begun"
    assert await gateway.states() == ["ready"]
    assert [line["state"] for line in events(gateway, "replica_state")] == ["ready"], "no failure"


async def test_a_black_hole_that_ends_is_looked_at_again(engines, gateways):
    [engine] = await engines(Engine())
    health = {**ONLY_WHEN_IN_DOUBT, "timeout_s": 0.5, "failures_to_eject": 1}
    gateway = await gateways(fleet(engine), health=health)
    engine.hangs = {"/health", "/metrics"}

    async def state(name):
        return await gateway.states() == [name]

    await until(lambda: state("ejected"))
    assert (await gateway.replica(engine.name))["reason"] == "timeout"
    before = engine.asked["/metrics"]
    engine.hangs = set()
    await until(lambda: state("ready"))
    assert engine.asked["/metrics"] > before


async def test_a_replica_that_never_answers_costs_one_request_at_a_time(engines, gateways):
    [engine] = await engines(Engine(hangs={"/health"}))
    health = {**ONLY_WHEN_IN_DOUBT, "interval_s": 0.01, "timeout_s": 0.1}
    await gateways(fleet(engine), wait_ready=False, health=health)
    await probed(engine, 3)
    assert len(engine.tasks) <= 2, "the last one may not have noticed yet that we left"
    assert set(engine.asked) == {"/health"}


async def test_metrics_that_hang_keep_nobody_from_being_ready(engines, gateways):
    [engine] = await engines(Engine(hangs={"/metrics"}))
    health = {**ONLY_WHEN_IN_DOUBT, "timeout_s": 1.0}
    gateway = await gateways(fleet(engine), health=health)
    await probed(engine, 5)
    assert await gateway.states() == ["ready"]
    assert engine.asked["/metrics"] == 1, "a scrape that was too much is not asked for at once"
    assert (await gateway.replica(engine.name))["models"] == ["m"]


async def test_an_endless_page_is_cut_off(engines, gateways):
    class Endless(Engine):
        async def _probe(self, conversation):
            if b"/metrics" not in conversation.request.line:
                return await super()._probe(conversation)
            self.asked["/metrics"] += 1
            await conversation.start_stream()
            while True:
                await conversation.chunk(b"x" * 65536)
                self.asked["pieces"] += 1

    [engine] = await engines(Endless())
    gateway = await gateways(fleet(engine), health=ONLY_WHEN_IN_DOUBT)
    assert await gateway.states() == ["ready"]
    assert engine.asked["pieces"] <= 8 * 16 + 256, "8 MiB, and what waits in sockets' buffers"


async def test_a_bug_of_ours_is_told_once_and_probing_goes_on(engines, gateways, monkeypatch):
    [engine] = await engines(Engine())
    gateway = await gateways(fleet(engine), health=AT_EVERY_PROBE)

    def fail(*_):
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr("gateway.replicas.facts.engine_page", fail)
        await until(lambda: events(gateway, "task_crashed"))
        await probed(engine, 3)
        [told] = events(gateway, "task_crashed")
        assert (told["task"], told["name"]) == ("probe", engine.name)
        assert "a bug" not in told.values()
        assert await gateway.metric('warmroute_task_crashes_total{task="probe"}') >= 3
        assert await gateway.states() == ["ready"], "no fault of the replica"
    await probed(engine, 2)
    engine.healthy = False
    engine.statuses = {"/health": b"503 Service Unavailable"}
    await until(lambda: _is(gateway, "ejected"))


async def _is(gateway, state):
    return await gateway.states() == [state]


async def test_three_hundred_first_probes_are_spread_over_a_second():
    assert 0.5 < 300 * FIRST_PROBES_APART_S < 1.0


# Contradictions


async def test_what_contradicts_the_configuration_is_told_once_and_shown(engines, gateways):
    [engine] = await engines(Engine())
    config = fleet(engine, aliases=["gone"], block_size=32)
    config = config.model_dump()
    source = {"endpoint": "tcp://127.0.0.1:1", "replay_endpoint": None, "topic": ""}
    config["models"][0]["replicas"][0]["kv_events"] = source
    gateway = await gateways(GatewayConfig.model_validate(config), health=AT_EVERY_PROBE)
    await probed(engine, 3)
    told = {line["fact"]: line["problem"] for line in events(gateway, "replica_contradiction")}
    assert told == {
        "name": "configured as gone, but it serves m",
        "block_size": "configured as 32, but the engine has 16",
        "kv_events": "configured as tcp://127.0.0.1:1, but it says that it publishes none",
    }
    assert len(events(gateway, "replica_contradiction")) == 3
    shown = await gateway.replica(engine.name)
    assert shown["contradictions"] == told
    assert shown["block_size"] == 32, "the configuration wins"
    line = f'warmroute_replica_contradiction{{fact="block_size",replica="{engine.name}"}}'
    assert await gateway.metric(line) == 1.0


async def test_replicas_of_one_model_that_differ_are_told_apart_from_most(engines, gateways):
    odd = [{"id": "m", "root": "/other", "max_model_len": 2048}]
    fleet_of_three = await engines(Engine(), Engine(models=odd), Engine())
    gateway = await gateways(fleet(*fleet_of_three), health=AT_EVERY_PROBE)
    different = fleet_of_three[1]
    await until(lambda: _contradicts(gateway, different, {"model_root", "max_model_len"}))
    for same in (fleet_of_three[0], fleet_of_three[2]):
        await until(lambda same=same: _contradicts(gateway, same, set()))
    different.models = fleet_of_three[0].models
    await until(lambda: _contradicts(gateway, different, set()))
    ended = {line["fact"] for line in events(gateway, "replica_contradiction_ended")}
    assert {"model_root", "max_model_len"} <= ended


async def _contradicts(gateway, engine, facts):
    return set((await gateway.replica(engine.name))["contradictions"]) == facts


async def test_an_adapter_that_is_unloaded_is_no_longer_known_of_the_replica(engines, gateways):
    base = {"id": "m", "root": "/weights/m", "max_model_len": 4096}
    adapter = {"id": "adapter", "parent": "m"}
    [engine] = await engines(Engine(models=[adapter, base]))
    gateway = await gateways(fleet(engine), health=AT_EVERY_PROBE)
    assert (await gateway.replica(engine.name))["models"] == ["m", "adapter"]
    engine.models = [base]

    async def gone():
        return (await gateway.replica(engine.name))["models"] == ["m"]

    await until(gone)


# One address is not a fleet


@pytest.fixture
async def balanced(engines):
    """Two engines behind one address."""
    pair = await engines(Engine(), Engine())
    [balancer] = await engines(Balancer(pair))
    return balancer


async def test_two_engines_behind_one_address_are_told_at_once(balanced, gateways):
    gateway = await gateways(fleet(balanced), health=ONLY_WHEN_IN_DOUBT)
    [line] = events(gateway, "replica_shared_address")
    assert (line["replica"], line["found"]) == (balanced.name, "engines")
    assert "headless service" in line["problem"]
    assert (await gateway.replica(balanced.name))["shared_address"] == "engines"
    gauge = f'warmroute_replica_shared_address{{replica="{balanced.name}"}}'
    assert await gateway.metric(gauge) == 1.0
    assert (await ask(gateway, "it is served all the same")).status_code == 200


async def test_engines_that_come_behind_an_address_later_are_told_too(engines, gateways):
    first, second = await engines(Engine(), Engine())
    [balancer] = await engines(Balancer([first]))
    gateway = await gateways(fleet(balancer), health=AT_EVERY_PROBE)
    assert events(gateway, "replica_shared_address") == []
    balancer.use(first, second)
    await until(lambda: events(gateway, "replica_shared_address"))


async def test_a_restart_is_not_taken_for_a_second_engine(engines, gateways):
    [engine] = await engines(Engine())
    gateway = await gateways(fleet(engine), health=AT_EVERY_PROBE)
    await restarted_between_two_probes(engine)
    await probed(engine, 5, "/metrics")
    assert events(gateway, "replica_shared_address") == []


async def test_a_name_with_several_addresses_is_told(engines, gateways, monkeypatch):
    [engine] = await engines(Engine())
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def both(host, port, **options):
        found = await resolve("127.0.0.1" if host == "engines.test" else host, port, **options)
        if host != "engines.test":
            return found
        return [(*entry[:4], (address, port)) for entry in found for address in TWO]

    monkeypatch.setattr(loop, "getaddrinfo", both)
    section = {"name": "m", "replicas": [{"url": f"http://engines.test:{engine.port}"}]}
    config = GatewayConfig.model_validate({"models": [section]})
    gateway = await gateways(config, health=ONLY_WHEN_IN_DOUBT)
    [line] = events(gateway, "replica_shared_address")
    assert line["found"] == "addresses"
    assert "discovery `dns`" in line["problem"]


TWO = ("127.0.0.1", "127.0.0.2")


async def test_a_replica_that_never_answered_is_told_once_and_why(engines, gateways):
    [engine] = await engines(Engine())
    nobody = {"url": "http://127.0.0.1:1"}  # as with a typing error in its port
    config = fleet(engine)
    models = [{**config.model_dump()["models"][0], "replicas": [{"url": engine.url}, nobody]}]
    config = GatewayConfig.model_validate({"models": models})
    gateway = await gateways(config, wait_ready=False, health=ONLY_WHEN_IN_DOUBT)

    def told():
        lines = events(gateway, "replica_state")
        return [line for line in lines if line["replica"] == "127.0.0.1:1"]

    await until(told, "its line")
    await probed(engine, 5)
    expected = {"state": "starting", "reason": "unreachable", "replica": "127.0.0.1:1"}
    assert told() == [{"event": "replica_state", **expected}]
