"""Area I: the shared store hangs, lies or loses what it had."""

import asyncio
import json
import time
from collections import Counter
from functools import partial

from gateway.config.load import config_from_flags
from tests.support.event_fleets import blocks, holds, tokens
from tests.support.publishers import Publisher, removed, stored
from tests.support.replicas import until

COMPLETIONS = "/v1/completions"


def completion(ids):
    return {"model": "m", "prompt": [*ids], "max_tokens": 1}


async def send(gateway, ids):
    answer = await gateway.client.post(COMPLETIONS, json=completion(ids))
    assert answer.status_code == 200
    return answer.headers["x-warmroute-replica"]


async def answers(conversation):
    """Answer a completion; nothing of it was cached."""
    prompt = json.loads(conversation.request.body)["prompt"]
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 1}
    usage["prompt_tokens_details"] = {"cached_tokens": 0}
    body = json.dumps({"choices": [{"text": "a"}], "usage": usage}, separators=(",", ":"))
    await conversation.answer(body.encode())


class Stuck:
    """An engine whose threads hang in its storage until they are let go; probes are answered."""

    def __init__(self):
        self.is_stuck = True

    async def __call__(self, conversation):
        if self.is_stuck:
            await conversation.client_left()
        else:
            await answers(conversation)


async def test_i154_an_engine_stuck_in_its_storage_is_out_though_its_health_is_green_and_back_soon(
    replicas, gateways
):
    """Scaled: a first-byte limit of 0.3 s; the hang ends when the replica is out."""
    stuck = Stuck()
    [held, well] = await replicas(stuck, answers)
    config = config_from_flags([held.url, well.url])
    quickly = {"failures": 3, "base_s": 0.2, "max_s": 1.0}
    gateway = await gateways(config, timeouts={"first_byte_s": 0.3}, ejection=quickly)
    ids = tokens(50)
    stuck.is_stuck = False
    while await send(gateway, ids) != held.name:  # its prefix is there now
        ids = [number + 1000 for number in ids]
    stuck.is_stuck = True

    async def is_out():
        answer = await gateway.client.post(COMPLETIONS, json=completion(ids))
        assert answer.status_code in (200, 504)
        return (await gateway.replica(held.name))["state"] == "ejected"

    await until(is_out, "the ejection")
    assert await send(gateway, ids) == well.name, "what it has cached does not count"
    stuck.is_stuck = False
    recovered_at = time.monotonic()

    async def is_back():
        await send(gateway, [number + 7 for number in ids])
        return (await gateway.replica(held.name))["state"] == "ready"

    await until(is_back, "its return")
    assert time.monotonic() - recovered_at < 10.0


EVENTS = {"kind": "events", "ttl_s": 3600.0}
LONG = 40  # blocks: 160 tokens, which are worth a load


async def test_i155_blocks_that_the_pool_lost_without_a_word_are_promised_once(fleet):
    gateway, pairs = await fleet(Publisher(), Publisher(), script=answers, shared_cache=EVENTS)
    (first, publisher), (second, _) = pairs
    ids = tokens(LONG)
    await publisher.send(stored(range(1, LONG + 1), ids, medium="STORAGE"))
    for replica in (first, second):
        await holds(gateway, ids, replica, LONG, "L2")
    await send(gateway, [*ids, 1])
    for replica in (first, second):
        await holds(gateway, ids, replica, 0, "L2")
    refuted = 'warmroute_shared_cache_refuted_chunks_total{model="default"}'
    assert await gateway.metric(refuted) == LONG


async def test_i155_a_replica_without_the_pool_does_not_make_the_others_forget_it(fleet):
    gateway, pairs = await fleet(Publisher(), Publisher(), script=answers, shared_cache=EVENTS)
    (without, publisher), (other, _) = pairs
    path = f"/admin/replicas/{other.name}"
    assert (await gateway.admin.post(f"{path}/cordon")).status_code == 200
    for number in range(5):
        ids, names = tokens(LONG, 1000 * number), range(100 * number, 100 * number + LONG)
        await publisher.send(stored(names, ids, medium="STORAGE"))
        await until(lambda: _known_chunks(gateway), "the event")
        await send(gateway, [*ids, 9999])
        await until(partial(_has_ended, gateway, number + 1), "the request's end")
    not_served = f'warmroute_shared_cache_not_served{{replica="{without.name}"}}'
    assert await gateway.metric(not_served) == 1
    assert (await gateway.admin.post(f"{path}/uncordon")).status_code == 200
    assert await blocks(gateway, ids, other, "L2") == LONG


async def _known_chunks(gateway):
    return await gateway.metric("warmroute_shared_cache_known_chunks{") == LONG


def _has_ended(gateway, requests):
    return len(gateway.requests()) == requests


async def test_i155_what_all_replicas_reach_sends_nobody_more_than_its_share(fleet):
    gateway, pairs = await fleet(Publisher(), Publisher(), script=answers, shared_cache=EVENTS)
    (_, publisher), _ = pairs
    ids = tokens(LONG)
    await publisher.send(stored(range(1, LONG + 1), ids, medium="STORAGE"))
    await holds(gateway, ids, pairs[1][0], LONG, "L2")
    placed = Counter(
        await asyncio.gather(*(send(gateway, [*ids, number]) for number in range(100)))
    )
    assert max(placed.values()) <= 1.5 * 50 + 4


async def test_i155_entries_age_out(fleet):
    lives = {"kind": "events", "ttl_s": 2.0}
    gateway, [(replica, publisher)] = await fleet(Publisher(), shared_cache=lives)
    ids = tokens(LONG)
    await publisher.send(stored(range(1, LONG + 1), ids, medium="STORAGE"))
    await holds(gateway, ids, replica, LONG, "L2")
    await holds(gateway, ids, replica, 0, "L2")


async def test_i155_an_operator_flushes_the_tier(fleet):
    gateway, pairs = await fleet(Publisher(), Publisher(), shared_cache=EVENTS)
    (first, publisher), _ = pairs
    ids = tokens(LONG)
    await publisher.send(stored(range(1, LONG + 1), ids))
    await publisher.send(stored(range(1, LONG + 1), ids, medium="STORAGE"))
    for replica, _ in pairs[1:]:
        await holds(gateway, ids, replica, LONG, "L2")
    flushed = await gateway.admin.post("/admin/flush", params={"tier": "L2"})
    assert flushed.json() == {"tier": "L2", "flushed": {"default": LONG}, "gateways": None}
    assert await blocks(gateway, ids, pairs[1][0], "L2") == 0
    assert await blocks(gateway, ids, first, "L0") == LONG, "other tiers stay"
    assert (await gateway.admin.post("/admin/flush", params={"tier": "L0"})).status_code == 400
    unknown = await gateway.admin.post("/admin/flush", params={"tier": "L2", "model": "x"})
    assert unknown.status_code == 400


async def test_e114_a_removal_from_the_pool_leaves_the_gpu_copy_and_the_other_way_round(fleet):
    gateway, pairs = await fleet(Publisher(), Publisher(), shared_cache=EVENTS)
    (first, publisher), (second, _) = pairs
    ids = tokens(LONG)
    names = range(1, LONG + 1)
    await publisher.send(stored(names, ids))
    copied = {"token_ids": [], "block_size": 0, "medium": "STORAGE"}
    await publisher.send(stored(names, ids) | copied)
    await holds(gateway, ids, second, LONG, "L2")
    await publisher.send(removed(*names))
    await holds(gateway, ids, first, LONG, "L2")
    assert await blocks(gateway, ids, first, "L0") == 0
    await publisher.send(removed(*names, medium="STORAGE"))
    await holds(gateway, ids, second, 0, "L2")
