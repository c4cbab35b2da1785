"""Two pools never share what the index knows, whatever their prompts have in common."""

import contextlib

import pytest

from gateway.config.models import GatewayConfig
from tests.support.gateways import all_ready, quick, running
from tests.support.replicas import until

MODEL = "loadtests/demo_model"
PROMPT = " ".join(f"fact {number}," for number in range(100))


def chat(model):
    return {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": PROMPT}]}


@pytest.fixture
async def gateway_of():
    async with contextlib.AsyncExitStack() as stack:

        async def start(models, **sections):
            config = GatewayConfig.model_validate({"models": models, **sections})
            gateway = await stack.enter_async_context(running(quick(config)))
            await until(lambda: all_ready(gateway), "readiness")
            await until(lambda: _all_follow(gateway), "event streams")
            return gateway

        yield start


async def _all_follow(gateway):
    models = (await gateway.status())["models"]
    return all(r["follows_events"] for m in models for r in m["replicas"])


async def matched(gateway, model, **headers):
    told = await gateway.admin.post("/admin/explain", json=chat(model), headers=headers)
    [candidate] = told.json()["candidates"]
    return candidate["matched_tokens"]


async def confirmed(gateway, model, **headers):
    return (await matched(gateway, model, **headers))["confirmed_L0"] > 0


async def ask(gateway, model, **headers):
    answer = await gateway.client.post("/v1/chat/completions", json=chat(model), headers=headers)
    assert answer.status_code == 200, answer.text
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return int(answer.headers["x-warmroute-matched-tokens"]), cached


async def test_two_models_with_the_same_prompt_share_no_entries(simulators, gateway_of):
    replicas = [*simulators("--model", "alpha"), *simulators("--model", "beta")]
    gateway = await gateway_of(
        [
            {"name": name, "tokenizer": MODEL, "replicas": [{"url": replica.url}]}
            for name, replica in zip(("alpha", "beta"), replicas, strict=True)
        ]
    )
    assert await ask(gateway, "alpha") == (0, 0)
    await until(lambda: confirmed(gateway, "alpha"), "the events of alpha's blocks")
    assert set((await matched(gateway, "beta")).values()) == {0}
    predicted, cached = await ask(gateway, "alpha")
    assert predicted == cached > 0
    assert await ask(gateway, "beta") == (0, 0)
    await until(lambda: confirmed(gateway, "beta"), "the events of beta's blocks")
    predicted, cached = await ask(gateway, "beta")
    assert predicted == cached > 0


async def test_two_pools_of_one_model_share_no_entries(simulators, gateway_of):
    replicas = simulators("--model", "alpha", count=2)
    gateway = await gateway_of(
        [
            {"name": "alpha", "pool": pool, "tokenizer": MODEL, "replicas": [{"url": replica.url}]}
            for pool, replica in zip(("stable", "trial"), replicas, strict=True)
        ],
        rules=[
            {"when": {"headers": {"x-pool": pool}}, "pool": pool} for pool in ("stable", "trial")
        ],
    )
    stable, trial = {"x-pool": "stable"}, {"x-pool": "trial"}
    assert await ask(gateway, "alpha", **stable) == (0, 0)
    await until(lambda: confirmed(gateway, "alpha", **stable), "the events of its blocks")
    assert await ask(gateway, "alpha", **trial) == (0, 0)
    predicted, cached = await ask(gateway, "alpha", **stable)
    assert predicted == cached > 0
