"""Replicas that share a directory of LMCache-named files, and a gateway that looks into it."""

import contextlib

import pytest

from tests.integration.conftest import MODEL, _all_follow
from tests.integration.test_gateway_and_simulators import chat, text
from tests.support.gateways import all_ready, quick, running
from tests.support.replicas import until
from tests.support.shared_caches import is_up, with_shared_cache

LONG = text(11, 1500)
# A gateway on this machine shares it with the simulators: no deadline is a matter of luck.
PATIENT = {"lookup_timeout_s": 2.0, "stall_s": 5.0}


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "l2"
    path.mkdir()
    return path


@pytest.fixture
async def shared_gateway():
    """Start a gateway whose one model has this `shared_cache`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(replicas, section, **changes):
            config = with_shared_cache([replica.url for replica in replicas], section, MODEL)
            gateway = await stack.enter_async_context(running(quick(config, **changes)))
            await until(lambda: all_ready(gateway), "readiness")
            await until(lambda: _all_follow(gateway), "event streams")
            if section["kind"] == "lmcache_fs":
                await until(lambda: is_up(gateway), "the mount")
            return gateway

        yield start


def fs(directory, mode="multiprocess", **fields):
    found = {"kind": "lmcache_fs", "paths": [str(directory)], "mode": mode, **PATIENT, **fields}
    return found | ({"hash": "sha256_cbor"} if mode == "in_process" else {})


async def ask(gateway, body):
    answer = await gateway.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    actual = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer.headers, actual


def flags(directory, mode, world_size=1):
    return (
        *("--speed", "20", "--l2-dir", str(directory), "--l2-mode", mode),
        *("--l2-world-size", str(world_size)),
    )


async def remove(gateway, replica):
    name = replica.url.removeprefix("http://")
    assert (await gateway.admin.post(f"/admin/replicas/{name}/drain")).status_code == 200


def of(headers, replicas):
    return next(r for r in replicas if r.url.endswith(headers["x-warmroute-replica"]))


@pytest.mark.parametrize(
    ("mode", "world_size"), [("multiprocess", 1), ("in_process", 1), ("multiprocess", 2)]
)
async def test_a_prompt_that_one_replica_computed_is_served_to_another_from_the_pool(
    simulators, shared_gateway, directory, mode, world_size
):
    replicas = simulators(*flags(directory, mode, world_size), count=2)
    gateway = await shared_gateway(replicas, fs(directory, mode, world_size=world_size))
    first, cold = await ask(gateway, chat(LONG))
    assert cold == 0
    assert len(list(directory.iterdir())) >= 3 * world_size
    await remove(gateway, of(first, replicas))
    headers, actual = await ask(gateway, chat(LONG))
    assert headers["x-warmroute-replica"] != first["x-warmroute-replica"]
    assert headers["x-warmroute-tier"] == "L2"
    assert actual == int(headers["x-warmroute-matched-tokens"]) > 700
    told = dict(part.split("=") for part in headers["x-warmroute-tiers"].split(", "))
    assert told["L2"].split("/")[0] == str(actual)
    assert float(told["L2"].split("/")[1]) > 0.0 < float(told["missing"].split("/")[1])


async def test_every_replica_is_credited_with_every_chunk_of_the_pool(
    simulators, shared_gateway, directory
):
    replicas = simulators(*flags(directory, "multiprocess"), count=3)
    gateway = await shared_gateway(replicas, fs(directory))
    body = chat(LONG)
    first, _ = await ask(gateway, body)
    num_chunks = len(list(directory.iterdir()))
    told = (await gateway.admin.post("/admin/explain", json=body)).json()
    assert len(told["candidates"]) == 3
    for candidate in told["candidates"]:
        if candidate["replica"] == first["x-warmroute-replica"]:
            assert candidate["matched_tokens"]["L0"] > 256 * num_chunks
        else:
            assert candidate["matched_tokens"]["L2"] == 256 * num_chunks
            assert candidate["price"]["L2"]["seconds"] > 0.0


async def test_salts_keep_tenants_apart_in_the_multiprocess_form(
    simulators, shared_gateway, directory
):
    replicas = simulators(*flags(directory, "multiprocess"), count=2)
    gateway = await shared_gateway(replicas, fs(directory))
    first, _ = await ask(gateway, chat(LONG, cache_salt="a"))
    await remove(gateway, of(first, replicas))
    headers, actual = await ask(gateway, chat(LONG, cache_salt="b"))
    assert (headers["x-warmroute-tier"], actual) == ("none", 0)
    headers, actual = await ask(gateway, chat(LONG, cache_salt="a"))
    assert headers["x-warmroute-tier"] == "L2"
    assert actual == int(headers["x-warmroute-matched-tokens"]) > 700


async def test_what_left_the_pool_is_promised_once_and_then_no_more(
    simulators, shared_gateway, directory
):
    replicas = simulators(*flags(directory, "multiprocess"), count=2)
    gateway = await shared_gateway(replicas, fs(directory, present_s=600.0))
    first, _ = await ask(gateway, chat(LONG))
    told = (await gateway.admin.post("/admin/explain", json=chat(LONG))).json()
    assert any(c["matched_tokens"]["L2"] > 700 for c in told["candidates"])
    await remove(gateway, of(first, replicas))
    files = list(directory.iterdir())
    for file in files:
        file.unlink()
    headers, actual = await ask(gateway, chat(LONG))
    assert (headers["x-warmroute-tier"], actual) == ("L2", 0)
    refuted = 'warmroute_shared_cache_refuted_chunks_total{model="default"}'
    assert await gateway.metric(refuted) == len(files)
    assert len(list(directory.iterdir())) == len(files), "the second replica wrote them again"
    told = (await gateway.admin.post("/admin/explain", json=chat(LONG))).json()
    assert all(c["matched_tokens"]["L2"] == 0 for c in told["candidates"])


async def test_write_through_expects_what_went_through_and_learns_what_is_not_there(
    simulators, shared_gateway, directory
):
    replicas = simulators(*flags(directory, "multiprocess"), count=2)
    section = {"kind": "assume_write_through", "delay_s": 0.0}
    gateway = await shared_gateway(replicas, section)
    first, _ = await ask(gateway, chat(LONG))
    await remove(gateway, of(first, replicas))
    headers, actual = await ask(gateway, chat(LONG))
    assert headers["x-warmroute-tier"] == "L2"
    assert actual == int(headers["x-warmroute-matched-tokens"]) > 700


async def test_write_through_expects_again_what_a_replica_had_to_compute_anew(
    simulators, shared_gateway, directory
):
    replicas = simulators(*flags(directory, "multiprocess"), count=3)
    section = {"kind": "assume_write_through", "delay_s": 0.0}
    gateway = await shared_gateway(replicas, section)
    first, _ = await ask(gateway, chat(LONG))
    await remove(gateway, of(first, replicas))
    for file in list(directory.iterdir()):
        file.unlink()
    second, actual = await ask(gateway, chat(LONG))
    assert (second["x-warmroute-tier"], actual) == ("L2", 0)
    await remove(gateway, of(second, replicas))
    third, actual = await ask(gateway, chat(LONG))
    assert third["x-warmroute-tier"] == "L2"
    assert actual == int(third["x-warmroute-matched-tokens"]) > 700


async def load_price_s(gateway):
    """What it takes to load 1,000 tokens from the pool."""
    name = 'warmroute_price_seconds{{model="default",price="{}"}}'
    return sum([await gateway.metric(name.format(part)) for part in ("l2_latency", "l2_1000")])


async def test_prices_follow_what_loads_from_the_pool_take(simulators, shared_gateway, directory):
    """The pool takes 60 ms to begin where 3 ms are configured; six prompts tell."""
    profile = directory.parent / "slow.yaml"
    profile.write_text(
        "{base: reference, l2: {capacity_tokens: 99999999, latency_s: 0.06, token_s: 0.0000226}}"
    )
    told = ("--l2-dir", str(directory), "--profile", str(profile))
    replicas = simulators(*told, count=2)
    gateway = await shared_gateway(replicas, fs(directory))
    configured_s = await load_price_s(gateway)
    bodies = [chat(text(100 + n, 1500)) for n in range(6)]
    writer = replicas[0]
    for body in bodies:
        writer.post("/v1/chat/completions", body)
    await remove(gateway, writer)
    for body in bodies:
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        answer = await gateway.client.post("/v1/chat/completions", json=streamed)
        assert answer.headers["x-warmroute-tier"] == "L2"
    assert await load_price_s(gateway) > 1.3 * configured_s
