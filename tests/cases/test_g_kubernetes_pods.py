"""Area G: pods that end, vanish unseen or hang, behind a whole gateway that watches them."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

import pytest

from gateway.config.models import GatewayConfig
from tests.support.gateways import RunningGateway
from tests.support.kubernetes import NAMESPACE, SELECTOR, SERVICE, ApiServer, Cluster, kubeconfig
from tests.support.replicas import ScriptedReplica, until

CHAT = "/v1/chat/completions"
SOURCES = {"service": {"service": SERVICE}, "pods": {"selector": SELECTOR}}
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'

by_service_and_by_pods = pytest.mark.parametrize("source", SOURCES)


async def answers(conversation):
    await conversation.answer(b"{}")


class Silent(ScriptedReplica):
    """Takes probes and never answers."""

    async def _probe(self, conversation):
        await conversation.client_left()


@dataclass
class World:
    """Replicas that run here as pods of a cluster, and the gateway in front of them."""

    api: ApiServer
    cluster: Cluster
    gateway: RunningGateway
    stack: contextlib.AsyncExitStack

    async def run(self, name, script=answers, kind=ScriptedReplica):
        """Start a replica, and the pod that it is in."""
        replica = await kind(script).start()
        self.stack.push_async_callback(replica.stop)
        self.cluster.add(name, "127.0.0.1", ports=(("http", replica.port),), life=replica.port)
        return replica

    async def states(self):
        models = (await self.gateway.status())["models"]
        return {
            replica["id"]: replica["state"] for model in models for replica in model["replicas"]
        }

    async def becomes(self, within_s=10.0, **states):
        """Wait until these are the replicas and their states."""

        async def is_so():
            return await self.states() == states

        await until(is_so, f"the states {states}", within_s)

    async def ask(self, chat, **options):
        return await self.gateway.client.post(CHAT, json=chat(**options))


@pytest.fixture
async def world(tmp_path, gateways):
    """Start a gateway that looks for pods: `await world(source)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(source):
            api = await stack.enter_async_context(ApiServer())
            section = {
                "kind": "kubernetes",
                "namespace": NAMESPACE,
                "port": "http",
                "kubeconfig": kubeconfig(tmp_path, f"http://127.0.0.1:{api.port}"),
                **SOURCES[source],
            }
            config = GatewayConfig.model_validate(
                {"models": [{"name": "m", "discovery": [section]}]}
            )
            gateway = await gateways(config, wait_ready=False)
            return World(api, Cluster(api), gateway, stack)

        yield start


@by_service_and_by_pods
async def test_g128_a_pod_that_terminates_gets_nothing_new_and_ends_its_streams(
    world, chat, source
):
    """Its readiness probe still passes; 5 streams on it go on to their end."""
    world = await world(source)
    release = asyncio.Event()

    async def streams(conversation):
        await conversation.start_stream()
        await conversation.chunk(EVENT)
        await release.wait()
        await conversation.chunk(b"data: [DONE]\n\n")
        await conversation.end()

    r0 = await world.run("r0", streams)
    await world.becomes(r0="ready")
    open_streams = [asyncio.create_task(world.ask(chat, stream=True)) for _ in range(5)]
    await until(lambda: len(r0.received) == 5, "five streams")
    r1 = await world.run("r1")
    await world.becomes(r0="ready", r1="ready")
    world.cluster.change("r0", terminating=True, ready=True)
    await world.becomes(r0="draining", r1="ready", within_s=1.0)
    for _ in range(20):
        assert (await world.ask(chat)).status_code == 200
    assert (len(r0.received), len(r1.received)) == (5, 20)
    release.set()
    for answer in await asyncio.gather(*open_streams):
        assert (answer.status_code, answer.text.count("[DONE]")) == (200, 1)
    world.cluster.remove("r0")
    await world.becomes(r1="ready")


@by_service_and_by_pods
async def test_g128_a_rolling_update_of_three_at_20_rps_has_no_5xx(world, chat, source):
    world = await world(source)
    old = [await world.run(f"old-{n}") for n in range(3)]
    await world.becomes(**{f"old-{n}": "ready" for n in range(3)})
    statuses = []

    async def load():
        while True:
            statuses.append((await world.ask(chat)).status_code)
            await asyncio.sleep(0.05)

    loading = asyncio.create_task(load())
    for number in range(3):
        await world.run(f"new-{number}")
        expected = {f"old-{n}": "ready" for n in range(number, 3)}
        expected |= {f"new-{n}": "ready" for n in range(number + 1)}
        await world.becomes(**expected)
        world.cluster.change(f"old-{number}", terminating=True)
        await world.becomes(**{**expected, f"old-{number}": "draining"})
        await old[number].stop()
        world.cluster.remove(f"old-{number}")
        del expected[f"old-{number}"]
        await world.becomes(**expected)
    loading.cancel()
    await asyncio.wait([loading])
    assert loading.cancelled()
    assert set(statuses) == {200}


def lost_by_a_break(api):
    api.break_watches()


def lost_by_a_compaction(api):
    api.compact()
    api.pass_by(50)
    api.compact()
    api.end_watches()


def refused_for_a_while(api):
    api.refusals.extend([(403, ""), (429, "retry-after: 1\r\n"), (503, "")])
    api.break_watches()


@by_service_and_by_pods
@pytest.mark.parametrize("trouble", [lost_by_a_break, lost_by_a_compaction, refused_for_a_while])
async def test_g130_a_deletion_that_no_event_tells_is_seen_by_the_next_list(world, source, trouble):
    world = await world(source)
    r0 = await world.run("r0")
    await world.run("r1")
    await world.becomes(r0="ready", r1="ready")
    await until(lambda: world.api.watches, "an open watch")
    await r0.stop()
    with world.api.losing_events():
        world.cluster.remove("r0")
    trouble(world.api)
    await world.becomes(r1="ready")


async def test_g130_while_the_watch_is_half_open_a_dead_pod_costs_no_request(world, chat):
    """Nothing tells of the deletion for a minute: connect failures and probes do."""
    world = await world("pods")
    r0 = await world.run("r0")
    await world.run("r1")
    await world.becomes(r0="ready", r1="ready")
    await until(lambda: world.api.watches, "an open watch")
    world.api.freeze_watches()
    await r0.stop()
    world.cluster.remove("r0")
    begun = time.monotonic()
    answers = await asyncio.gather(*(world.ask(chat) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert time.monotonic() - begun < 5.0
    await world.becomes(r0="ejected", r1="ready")


@by_service_and_by_pods
async def test_g132_a_pod_that_never_answers_holds_nothing_up(world, chat, source):
    world = await world(source)
    r9 = await world.run("r9", kind=Silent)
    await world.run("r0")
    await world.becomes(r9="starting", r0="ready")
    await until(lambda: r9.probes, "a probe of r9")
    world.cluster.remove("r0")
    await world.run("r1")
    await world.becomes(r9="starting", r1="ready", within_s=2.0)
    assert (await world.ask(chat)).status_code == 200
    assert r9.received == []
