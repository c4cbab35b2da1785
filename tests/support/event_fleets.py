"""Gateways in step with engines that publish, and what they believe of them."""

import asyncio
import contextlib

import pytest

from tests.support.api_replicas import says_hello
from tests.support.engines import Engine
from tests.support.gateways import all_ready, quick, running
from tests.support.publishers import CLEARED
from tests.support.replicas import until
from tests.support.shared_caches import with_shared_cache

SIZE = 4


def tokens(num_blocks, first=0):
    return list(range(first, first + num_blocks * SIZE))


async def candidates(gateway, ids):
    body = {"model": "m", "prompt": [*ids, 9999]}
    told = (await gateway.admin.post("/admin/explain?path=/v1/completions", json=body)).json()
    return {c["replica"]: c["matched_tokens"] for c in told["candidates"]}


async def blocks(gateway, ids, replica, tier="L0"):
    """Leading blocks of a prompt that a replica is believed to hold in a tier."""
    return (await candidates(gateway, ids))[replica.name][tier] // SIZE


async def holds(gateway, ids, replica, num_blocks, tier="L0"):
    async def as_expected():
        return await blocks(gateway, ids, replica, tier) == num_blocks

    await until(as_expected, f"{num_blocks} blocks of {replica.name} in {tier}")


async def metric(gateway, name, replica):
    return await gateway.metric(f'warmroute_{name}{{replica="{replica.name}"')


@pytest.fixture
async def publishers():
    """Start publishers: `await publishers(Publisher(), Publisher())`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*new, **ports):
            for publisher in new:
                await publisher.start(**ports)
                stack.push_async_callback(publisher.stop)
            return list(new)

        yield start


@pytest.fixture
async def fleet(engines, publishers):
    """A gateway in step with engines that publish: `gateway, pairs = await fleet(Publisher())`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*new, in_step=True, script=says_hello, shared_cache=None, **changes):
            await publishers(*new)
            sources = [{"0": publisher.source()} for publisher in new]
            replicas = await engines(
                *(Engine(script=script, block_size=SIZE, sources=s) for s in sources)
            )
            urls = [replica.url for replica in replicas]
            config = quick(with_shared_cache(urls, shared_cache), **changes)
            gateway = await stack.enter_async_context(running(config))
            await until(lambda: all_ready(gateway), "readiness")
            if in_step:
                for replica, publisher in zip(replicas, new, strict=True):
                    await until(lambda p=publisher: p.asked_from or not p.replays, "a subscriber")
                    await heard(gateway, replica, publisher)
                    await until(lambda r=replica: follows(gateway, r), "step")
            return gateway, list(zip(replicas, new, strict=True))

        yield start


async def follows(gateway, replica):
    return (await gateway.replica(replica.name))["follows_events"]


async def heard(gateway, replica, publisher):
    """Send batches until one comes live, so that the subscription is there."""

    async def sent_and_counted():
        before = await metric(gateway, "kv_event_batches", replica) or 0
        await publisher.send(CLEARED)  # without replays, what came before the first one is a loss
        await asyncio.sleep(0.02)  # between two tries, not to wait for their effect
        return (await metric(gateway, "kv_event_batches", replica) or 0) > before

    await until(sent_and_counted, "a live batch")
