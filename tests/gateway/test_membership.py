"""A model's replicas follow its discoveries."""

import asyncio

import pytest

from gateway.config.guards import EjectionConfig
from gateway.config.models import GatewayConfig
from gateway.proxy.transport import Origin
from gateway.replicas.discovery.base import Found
from gateway.replicas.membership import Membership
from gateway.replicas.registry import Registry, Replica, ReplicaState
from tests.support.replicas import until

A, B = Found("http://10.0.0.1:8000", "pod-a"), Found("http://10.0.0.2:8000", "pod-b")


class Fleet:
    def __init__(self):
        self.events = []
        self.registry = Registry((), EjectionConfig(), lambda: 0.0, lambda _: None)
        self.membership = Membership(
            self.registry,
            lambda replica_id, found: Replica(replica_id, "m", found.url, Origin("h", 1)),
            lambda replica: self.events.append(("joined", replica.replica_id)),
            lambda replica: self.events.append(("left", replica.replica_id)),
            lambda found, owner: self.events.append(("refused", found.url, owner.replica_id)),
        )

    def apply(self, *found, source=0):
        self.events.clear()
        self.membership.apply(source, frozenset(found))
        return self.events

    def ids(self):
        return sorted(replica.replica_id for replica in self.registry)


@pytest.fixture
def fleet():
    return Fleet()


def test_replicas_join_and_leave_once(fleet):
    assert sorted(fleet.apply(A, B)) == [("joined", "pod-a"), ("joined", "pod-b")]
    assert fleet.apply(A, B) == []
    assert fleet.apply(B) == [("left", "pod-a")]
    assert fleet.ids() == ["pod-b"]
    assert fleet.apply() == [("left", "pod-b")]


def test_a_pod_that_comes_back_at_another_address_is_another_replica(fleet):
    fleet.apply(A)
    moved = Found("http://10.0.0.9:8000", "pod-a")
    assert fleet.apply(A, moved) == [("joined", "pod-a@10.0.0.9:8000")]
    assert fleet.apply(moved) == [("left", "pod-a")]


def test_another_pod_at_the_same_address_is_another_replica(fleet):
    fleet.apply(A)
    assert fleet.apply(Found(A.url, "pod-c")) == [("left", "pod-a"), ("joined", "pod-c")]


def test_two_sources_may_call_an_address_by_different_names(fleet):
    fleet.apply(A, source=0)
    assert fleet.apply(Found(A.url, "other"), source=1) == []
    assert fleet.apply(source=0) == [("left", "pod-a"), ("joined", "other")]


def test_a_source_that_is_retired_counts_until_all_its_successors_have_told(fleet):
    fleet.apply(A, B, source=0)
    fleet.membership.retire([0], [1, 2])
    fleet.apply(B, source=1)
    assert fleet.ids() == ["pod-a", "pod-b"], "the second one may still name it"
    assert fleet.apply(source=2) == [("left", "pod-a")]
    assert fleet.ids() == ["pod-b"]


def test_without_successors_what_a_source_found_leaves_at_once(fleet):
    fleet.apply(A, source=0)
    fleet.membership.retire([0], [])
    assert fleet.ids() == []


def test_a_source_that_is_retired_twice_is_let_go_once(fleet):
    fleet.apply(A, source=0)
    fleet.membership.retire([0], [1])
    fleet.membership.retire([1], [2])
    fleet.apply(A, source=2)
    assert fleet.ids() == ["pod-a"]
    assert fleet.apply(source=2) == [("left", "pod-a")]


def test_several_sources_feed_one_model(fleet):
    fleet.apply(A, source=0)
    assert fleet.apply(A, B, source=1) == [("joined", "pod-b")]
    assert fleet.apply(source=0) == [], "the other one still names it"
    assert fleet.apply(B, source=1) == [("left", "pod-a")]


def test_what_the_platform_does_not_want_gets_no_new_requests(fleet):
    fleet.apply(A)
    [replica] = fleet.registry
    fleet.registry.probed_well(replica)
    assert fleet.registry.eligible("m") == [replica]
    fleet.apply(Found(A.url, A.name, ready=False))
    assert (replica.state, fleet.registry.eligible("m")) == (ReplicaState.DRAINING, [])
    fleet.registry.probed_well(replica)
    assert replica.state is ReplicaState.DRAINING, "a good probe is not enough"
    fleet.apply(A)
    fleet.registry.probed_well(replica)
    assert replica.state is ReplicaState.READY


def test_a_source_that_says_ready_is_enough(fleet):
    fleet.apply(Found(A.url, "x", ready=False), source=0)
    fleet.apply(A, source=1)
    [replica] = fleet.registry
    assert replica.wanted


async def test_replicas_come_and_go_under_traffic(replicas, gateways, chat, tmp_path):
    """A replica leaves with a stream open, comes back, and its books begin at zero."""
    gates = [asyncio.Event()]

    async def script(conversation):
        await conversation.start_stream()
        await conversation.chunk(b"data: 1\n\n")
        await gates[0].wait()
        await conversation.chunk(b"data: [DONE]\n\n")
        await conversation.end()

    one, two = await replicas(script, script)
    listed = tmp_path / "replicas.yaml"
    listed.write_text(f"- {one.url}\n")
    config = GatewayConfig.model_validate(
        {
            "models": [
                {
                    "name": "m",
                    "replicas": [],
                    "discovery": [{"kind": "file", "path": str(listed), "interval_s": 0.02}],
                }
            ],
        }
    )
    gateway = await gateways(config, wait_ready=False)
    await until(lambda: _fleet_is(gateway, {one.name: "ready"}))
    request = gateway.client.stream("POST", "/v1/chat/completions", json=chat(stream=True))
    async with request as answer:
        assert await gateway.in_flight() == 1
        listed.write_text(f"- {two.url}\n")
        await until(lambda: _fleet_is(gateway, {two.name: "ready"}))
        listed.write_text(f"- {one.url}\n- {two.url}\n")
        await until(lambda: _fleet_is(gateway, {one.name: "ready", two.name: "ready"}))
        assert await gateway.in_flight() == 0, "the old stream is not the new replica's"
        gates[0].set()
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
    assert await gateway.in_flight() == 0
    seen = set()
    for number in range(20):
        answer = await gateway.client.post("/v1/chat/completions", json=chat(f"{number}"))
        seen.add(answer.headers["x-warmroute-replica"])
    assert seen == {one.name, two.name}
    listed.write_text("[]\n")
    await until(lambda: _fleet_is(gateway, {}))
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 503
    page = (await gateway.admin.get("/metrics")).text
    assert f'warmroute_replica_in_flight_requests{{replica="{one.name}"}}' not in page


async def _fleet_is(gateway, state_by_name):
    models = (await gateway.status())["models"]
    return {r["id"]: r["state"] for m in models for r in m["replicas"]} == state_by_name
