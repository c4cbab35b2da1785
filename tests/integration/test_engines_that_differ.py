"""Fleets whose replicas are not alike: block sizes, data-parallel ranks, and new processes."""

import os
import signal
from random import Random

from tests.support.ports import free_port
from tests.support.replicas import until
from tests.support.simulators import running_replica

WORDS = ("river", "house", "mountain", "people", "water", "light", "stone", "garden")


def chat(seed, words=300, **fields):
    rng = Random(seed)
    content = " ".join(rng.choice(WORDS) for _ in range(words))
    messages = [{"role": "user", "content": content}]
    return {"model": "demo-model", "max_tokens": 4, "messages": messages, **fields}


def cached_tokens(answer):
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def ask(gateway, body, **options):
    """Return (replica, matched tokens, cached tokens as the engine says)."""
    answer = await gateway.client.post("/v1/chat/completions", json=body, **options)
    assert answer.status_code == 200, answer.text
    matched = int(answer.headers["x-warmroute-matched-tokens"])
    return answer.headers["x-warmroute-replica"], matched, cached_tokens(answer)


async def settled(gateway, body, replica, block_size=16):
    """Wait until the events of a request's blocks were applied, and so all those before them."""

    async def confirmed():
        told = (await gateway.admin.post("/admin/explain", json=body)).json()
        candidate = next(c for c in told["candidates"] if c["replica"] == replica)
        usable = (told["num_prompt_tokens"] - 1) // block_size * block_size
        return candidate["matched_tokens"]["confirmed_L0"] == usable

    await until(confirmed, "the events of the last request")


async def asked_at_random(gateway, num_requests, size_of):
    """Ask about few documents in random order; each prediction has to come true."""
    rng = Random(3)
    replicas, hits = set(), 0
    for number in range(num_requests):
        body = chat(rng.randrange(5))
        replica, predicted, actual = await ask(gateway, body)
        assert predicted == actual, (number, replica)
        replicas.add(replica)
        hits += actual > 0
        await settled(gateway, body, replica, size_of(replica))
    return replicas, hits


# So that every replica is asked, whatever the chance.
IN_TURN = {"default": {"kind": "round_robin"}}


async def test_replicas_with_different_block_sizes_work_side_by_side(simulators, gateway_for):
    [small] = simulators("--speed", "20", "--block-size", "16")
    [large] = simulators("--speed", "20", "--block-size", "32")
    size_by_name = {small.url[7:]: 16, large.url[7:]: 32}
    gateway = await gateway_for([small, large], policies=IN_TURN)
    for name, size in size_by_name.items():
        assert (await gateway.replica(name))["block_size"] == size
    replicas, hits = await asked_at_random(gateway, 20, size_by_name.__getitem__)
    assert replicas == set(size_by_name)
    assert hits >= 8


RANKS = ("--speed", "20", "--data-parallel-size", "2")


async def test_data_parallel_ranks_are_replicas_with_caches_of_their_own(simulators, gateway_for):
    [engines] = simulators(*RANKS)
    gateway = await gateway_for([engines], policies=IN_TURN)
    name = engines.url[7:]
    [pool] = (await gateway.status())["models"]
    shown = {replica["id"]: replica["rank"] for replica in pool["replicas"]}
    assert shown == {f"{name}-dp0": 0, f"{name}-dp1": 1}
    replicas, hits = await asked_at_random(gateway, 20, lambda _: 16)
    assert replicas == set(shown)
    assert hits >= 8


def test_without_pinning_ranks_take_turns_and_miss(simulators):
    """Why each rank is a replica: the address alone leads to the other cache every other time."""
    [engines] = simulators(*RANKS)
    body = chat(1)
    cached = [cached_tokens(engines.post("/v1/chat/completions", body)) for _ in range(4)]
    assert cached[:2] == [0, 0]
    assert cached[2] == cached[3] > 0
    pinned = {"x-data-parallel-rank": "1"}
    again = engines.post("/v1/chat/completions", chat(2), headers=pinned)
    assert cached_tokens(again) == 0
    again = engines.post("/v1/chat/completions", chat(2), headers=pinned)
    assert cached_tokens(again) > 0
    answer = engines.post("/v1/chat/completions", body, headers={"x-data-parallel-rank": "2"})
    assert answer.status_code == 400


async def test_a_clients_own_rank_does_not_lead_past_the_decision(simulators, gateway_for):
    [engines] = simulators(*RANKS)
    gateway = await gateway_for([engines])
    body = chat(1)
    replica, _, _ = await ask(gateway, body)
    await settled(gateway, body, replica)
    other = "1" if replica.endswith("-dp0") else "0"
    again, predicted, actual = await ask(gateway, body, headers={"x-data-parallel-rank": other})
    assert (again, predicted) == (replica, actual)
    assert actual > 0


async def test_a_restart_with_more_ranks_makes_more_replicas(gateway_for):
    here = ("--port", str(free_port()))
    with running_replica(*RANKS, *here) as engines:
        gateway = await gateway_for([engines])
        name = engines.url[7:]
    with running_replica("--speed", "20", "--data-parallel-size", "3", *here):

        async def three():
            replicas = (await gateway.status())["models"][0]["replicas"]
            ready = [replica["id"] for replica in replicas if replica["state"] == "ready"]
            return ready == [f"{name}-dp{rank}" for rank in range(3)]

        await until(three, "a replica for each rank", within_s=20.0)
    with running_replica("--speed", "20", *here):

        async def one():
            replicas = (await gateway.status())["models"][0]["replicas"]
            return [(r["id"], r["state"]) for r in replicas] == [(name, "ready")]

        await until(one, "one replica", within_s=20.0)


async def test_a_new_process_at_the_same_address_holds_nothing(gateway_for):
    """Nothing but its start time tells: no event, no failed probe, facts read once an hour.

    The gateway stands still while the simulators are exchanged, as both are in the test's thread.
    """
    flags = ("--speed", "20", "--no-kv-events", "--port", str(free_port()))
    health = {"interval_s": 0.2, "timeout_s": 1.0, "metrics_interval_s": 3600.0}
    body = chat(1)
    with running_replica(*flags) as first:
        gateway = await gateway_for([first], health=health)
        await ask(gateway, body)
        _, predicted, actual = await ask(gateway, body)
        assert predicted == actual > 0
        first.process.kill()
    with running_replica(*flags):

        async def forgotten():
            told = (await gateway.admin.post("/admin/explain", json=body)).json()
            return told["candidates"][0]["matched_tokens"]["L0"] == 0

        await until(forgotten, "an empty index")
        _, predicted, actual = await ask(gateway, body)
        assert predicted == actual == 0
    states = [line["state"] for line in gateway.log if line["event"] == "replica_state"]
    assert states == ["ready"]


async def test_the_same_process_behind_a_black_hole_keeps_its_entries(simulators, gateway_for):
    [replica] = simulators("--speed", "20", "--no-kv-events")
    health = {"interval_s": 0.05, "timeout_s": 1.0, "failures_to_eject": 1}
    gateway = await gateway_for([replica], health=health)
    body = chat(1)
    await ask(gateway, body)
    os.kill(replica.process.pid, signal.SIGSTOP)
    try:
        await until(lambda: _states(gateway, "ejected"))
    finally:
        os.kill(replica.process.pid, signal.SIGCONT)
    await until(lambda: _states(gateway, "ready"))
    _, predicted, actual = await ask(gateway, body)
    assert predicted == actual > 0


async def _states(gateway, state):
    return set(await gateway.states()) == {state}
