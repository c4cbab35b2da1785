"""A thousand reloads under traffic: nobody notices, and nothing piles up."""

import asyncio
import json

import httpx
import pytest

from tests.support.processes import gateway_process
from tests.support.replicas import until

NUM_RELOADS = 1000
# By then caches are filled and the allocator has its arenas.
NUM_WARM_UP = 300
# 700 reloads that kept 40 KiB each, one copy of a small configuration, would add 28 MB.
MAX_GROWTH_BYTES = 8_000_000
NUM_CLIENTS = 4


async def answers(conversation):
    await conversation.answer(b'{"choices": []}')


def values(number, replicas):
    """Configurations that differ from the one before in policies, weights, limits and replicas."""
    listed = [{"url": replica.url, "weight": 1 + number % 3} for replica in replicas]
    there = listed if number % 4 else listed[:-1]
    kind = ("expected_ttft", "least_loaded", "round_robin")[number % 3]
    return {
        "health": {"interval_s": 0.1},
        "models": [{"name": "m", "replicas": there, "block_size": 16 + 16 * (number % 2)}],
        "policies": {"p": {"kind": kind}},
        "default_policy": "p",
        "limits": {"max_in_flight": 100 + number},
        "auth": {"keys": [{"name": "t", "key": "sk-1"}]},
    }


@pytest.mark.timeout(300)
async def test_a_thousand_reloads_fail_no_request_and_keep_no_memory(replicas, tmp_path):
    fleet = await replicas(answers, answers, answers)
    async with gateway_process(tmp_path, values(0, fleet)) as process:
        statuses = []
        done = asyncio.Event()

        async def client(number):
            body = {"model": "m", "messages": [{"role": "user", "content": f"client {number}"}]}
            key = {"authorization": "Bearer sk-1"}
            async with httpx.AsyncClient(base_url=process.url, headers=key, timeout=30) as session:
                while not done.is_set():
                    answer = await session.post("/v1/chat/completions", json=body)
                    statuses.append(answer.status_code)
                    await asyncio.sleep(0.02)

        clients = [asyncio.create_task(client(number)) for number in range(NUM_CLIENTS)]
        here = {"host": "127.0.0.1", "port": 0}
        path = tmp_path / "gateway.json"
        sizes = []
        async with httpx.AsyncClient(base_url=process.admin_url, timeout=30) as admin:
            for number in range(1, NUM_RELOADS + 1):
                new = tmp_path / "new.json"
                new.write_text(json.dumps({"listen": here, "admin": here, **values(number, fleet)}))
                new.replace(path)
                answer = await admin.post("/admin/reload")
                assert answer.status_code == 200, answer.text
                if number == NUM_WARM_UP:
                    sizes.append(process.resident_bytes())
            sizes.append(process.resident_bytes())
            done.set()
            await asyncio.gather(*clients)
            page = (await admin.get("/metrics")).text
        assert set(statuses) == {200}
        assert len(statuses) > NUM_RELOADS / 10
        assert sizes[1] - sizes[0] < MAX_GROWTH_BYTES, sizes
        applied = next(x for x in page.splitlines() if 'reloads_total{result="applied"}' in x)
        assert float(applied.rpartition(" ")[2]) == NUM_RELOADS
        await until(lambda: _is_zero(process), "the end of all requests")


async def _is_zero(process):
    return await process.in_flight() == 0
