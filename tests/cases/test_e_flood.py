"""Area E: more KV events than a gateway can take."""

import asyncio
import contextlib
import json
import sys
import time

import httpx
import pytest

from loadtests.redis_chaos.proxy import Proxy
from tests.support import flood_program
from tests.support.engines import Engine
from tests.support.event_fleets import blocks, follows, metric
from tests.support.flood_program import (
    HELD,
    HELD_STEPS,
    LAST,
    SEQUENCE_STEPS,
    SEQUENCES,
    SIZE,
    prompt,
)
from tests.support.gateways import RunningGateway
from tests.support.processes import ROOT, gateway_process
from tests.support.replicas import until
from tests.support.several import as_flags

# Of both publishers together, as in the case: three times what one core takes, over Redis.
BATCHES_S = 5000
FLOOD_S = 60.0
# As the case says, of a machine that runs nothing else. Publishers, replicas, Redis and clients
# share two cores with the gateway here: 150 to 172 MB, 10 s, and 5 to 6 ms.
MAX_GROWN_BYTES = 200e6
CATCH_UP_S = 30.0
MAX_ADDED_S = 0.020
REDIS_DELAY_S = 0.020
CHATS_S = 50
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


@pytest.fixture
async def floods():
    """Start publishers as processes: `await floods(2)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(count):
            program = flood_program.__file__
            argv = [sys.executable, program, str(BATCHES_S / count), str(FLOOD_S)]
            started = []
            for _ in range(count):
                pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
                process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, **pipes)
                stack.push_async_callback(process.wait)
                stack.callback(process.kill)
                started.append((process, json.loads(await process.stdout.readline())))
            return started

        yield start


async def chats(gateway, seconds):
    """Ask as often as the case says, whatever the answers take; return the p99."""
    took_s, began = [], time.monotonic()

    async def ask():
        asked = time.monotonic()
        assert (await gateway.client.post("/v1/chat/completions", json=BODY)).status_code == 200
        took_s.append(time.monotonic() - asked)

    async with asyncio.TaskGroup() as asking:
        for number in range(int(seconds * CHATS_S)):
            await asyncio.sleep(began + number / CHATS_S - time.monotonic())
            asking.create_task(ask())
    return sorted(took_s)[int(len(took_s) * 0.99)]


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(300)
async def test_e118_a_flood_for_a_minute_costs_bounded_memory_and_is_made_up_for(
    floods, engines, own_redis, tmp_path
):
    publishers = await floods(2)
    replicas = await engines(
        *(
            Engine(
                block_size=SIZE,
                num_blocks=HELD,
                sources={
                    "0": {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "", **at}
                },
            )
            for _, at in publishers
        )
    )
    async with contextlib.AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(own_redis().port, REDIS_DELAY_S))
        models = as_flags(proxy, replicas)["models"]
        config = {"models": models, "index": {"backend": "redis", "url": proxy.url}}
        process = await stack.enter_async_context(gateway_process(tmp_path, config))
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30.0))
            for url in (process.url, process.admin_url)
        ]
        gateway = RunningGateway(None, *clients, [], None)
        for replica in replicas:
            await until(lambda r=replica: follows(gateway, r), "step")
        quiet_s = await chats(gateway, 5.0)
        base = process.resident_bytes()
        for publisher, _ in publishers:
            publisher.stdin.write(b"go\n")
        flood_s = await chats(gateway, FLOOD_S)
        sent = [json.loads(await pub.stdout.readline())["sent"] for pub, _ in publishers]
        peak, ended = process.peak_bytes(), time.monotonic()

        async def caught_up():
            return all([await blocks(gateway, LAST, replica) for replica in replicas])

        await until(caught_up, "the last block", CATCH_UP_S)
        print(
            f"grown by {(peak - base) / 1e6:.0f} MB, caught up {time.monotonic() - ended:.1f} s "
            f"after the end, p99 {1e3 * quiet_s:.0f} ms before and {1e3 * flood_s:.0f} ms meanwhile"
        )
        for replica, num_sent in zip(replicas, sent, strict=True):
            newest = num_sent - 2
            for sequence in range(SEQUENCES):
                ids = prompt(newest, sequence)
                assert await blocks(gateway, ids, replica) == len(ids) // SIZE
            gone = newest - HELD_STEPS
            assert not await blocks(gateway, prompt(gone - gone % SEQUENCE_STEPS, 0), replica)
            assert await metric(gateway, "kv_event_blocks", replica) == HELD + 1
            assert await metric(gateway, "kv_event_losses", replica), "the flood was none"
            await until(lambda r=replica: follows(gateway, r), "trust in what is known")
        assert peak - base < MAX_GROWN_BYTES
        assert flood_s - quiet_s < MAX_ADDED_S
