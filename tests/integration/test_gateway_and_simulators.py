"""The whole path with real engines' surfaces: HTTP, KV events, usage."""

import asyncio
import json
from random import Random

import pytest

from tests.support.ports import free_port
from tests.support.replicas import until
from tests.support.simulators import running_replica

WORDS = ("river", "house", "mountain", "people", "water", "light", "stone", "garden")


def text(seed, words=200):
    rng = Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


def chat(*turns, **fields):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return {"model": "demo-model", "max_tokens": 4, "messages": messages, **fields}


async def ask(gateway, body):
    """Return (replica, matched tokens, cached tokens as the engine says)."""
    answer = await gateway.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return (
        answer.headers["x-warmroute-replica"],
        int(answer.headers["x-warmroute-matched-tokens"]),
        usage,
    )


async def settled(gateway, body, replica):
    """Wait until the events of a request's blocks were applied, and so all those before them."""

    async def confirmed():
        told = (await gateway.admin.post("/admin/explain", json=body)).json()
        candidate = next(c for c in told["candidates"] if c["replica"] == replica)
        usable = (told["num_prompt_tokens"] - 1) // 16 * 16
        return candidate["matched_tokens"]["confirmed_L0"] == usable

    await until(confirmed, "the events of the last request")


@pytest.mark.parametrize("encoding", ["map", "array"])
async def test_predicted_equals_actual_for_every_request(simulators, gateway_for, encoding):
    flags = ("--speed", "20", "--kv-events-encoding", encoding)
    replicas = simulators(*flags, count=2)
    gateway = await gateway_for(replicas)
    rng = Random(7)
    documents = [text(seed, 300) for seed in range(4)]
    hits = 0
    for number in range(24):
        body = chat(rng.choice(documents) + f" question {number % 9}", stream=False)
        if number % 5 == 0:
            body["cache_salt"] = f"tenant-{number % 2}"
        replica, predicted, actual = await ask(gateway, body)
        assert predicted == actual, (number, body)
        hits += actual > 0
        await settled(gateway, body, replica)
    assert hits >= 10, "the workload has something to hit"


async def test_a_full_cache_evicts_and_predictions_stay_exact(simulators, gateway_for):
    [replica] = simulators("--speed", "20", "--num-blocks", "101")  # 100 blocks, 1,600 tokens
    gateway = await gateway_for([replica])
    for number in range(16):
        body = chat(text(number % 5, 400))
        name, predicted, actual = await ask(gateway, body)
        assert predicted == actual, number
        await settled(gateway, body, name)
    removed = await gateway.metric('warmroute_index_blocks{tier="L0"}')
    assert removed <= 100


async def test_a_gateway_that_starts_late_knows_the_past(simulators, gateway_for):
    replicas = simulators("--speed", "20", count=2)
    body = chat(text(1, 300))
    warm = replicas[1].post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"]
    gateway = await gateway_for(replicas)
    replica, predicted, actual = await ask(gateway, body)
    assert replica == replicas[1].url.removeprefix("http://")
    assert predicted == actual == (warm - 1) // 16 * 16


async def test_explain_tells_every_candidates_terms_and_books_nothing(simulators, gateway_for):
    replicas = simulators("--speed", "20", count=2)
    gateway = await gateway_for(replicas)
    body = chat(text(1, 300))
    warm, _, _ = await ask(gateway, body)
    await settled(gateway, body, warm)
    for _ in range(3):
        told = (await gateway.admin.post("/admin/explain", json=body)).json()
    assert (told["replica"], told["rung"], told["reason"]) == (warm, "precise", "best")
    best, other = told["candidates"]
    assert best["matched_tokens"]["confirmed_L0"] == best["matched_tokens"]["L0"] > 0
    assert other["matched_tokens"]["L0"] == 0
    assert best["score"] == pytest.approx(sum(best["terms"].values()))
    assert other["score"] > best["score"]
    assert (await gateway.status())["models"][0]["routed"] == 1
    assert await gateway.in_flight() == 0


async def test_explain_answers_wrong_bodies_as_the_api_does(simulators, gateway_for):
    gateway = await gateway_for(simulators("--speed", "20"))
    answer = await gateway.admin.post("/admin/explain", content=b"{")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")
    answer = await gateway.admin.post("/admin/explain", json={**chat("x"), "model": "nope"})
    assert answer.status_code == 404


async def test_a_burst_of_siblings_follows_the_first_one(simulators, gateway_for):
    """Before any event can arrive: predicted holders keep them together, up to the bound."""
    replicas = simulators("--speed", "5", count=4)
    gateway = await gateway_for(replicas)
    document = text(3, 800)
    answers = await asyncio.gather(
        *[ask(gateway, chat(f"{document} question {number}")) for number in range(4)]
    )
    assert len({replica for replica, _, _ in answers}) == 1


async def test_a_restarted_engine_is_cold_again(gateway_for, simulators):
    flags = ["--speed", "20", "--port", str(free_port())]
    for name in ("--kv-events-endpoint", "--kv-events-replay-endpoint"):
        flags += [name, f"tcp://127.0.0.1:{free_port()}"]
    with running_replica(*flags) as first:
        gateway = await gateway_for([first])
        body = chat(text(1, 300))
        name, _, _ = await ask(gateway, body)
        await settled(gateway, body, name)
    await until(lambda: _state(gateway, "ejected"), "ejection")
    simulators(*flags)
    await until(lambda: _state(gateway, "ready"), "recovery")
    _, predicted, actual = await ask(gateway, body)
    assert predicted == actual == 0


async def _state(gateway, state):
    return await gateway.states() == [state]


async def test_a_reset_cache_is_known_with_the_next_batch(simulators, gateway_for):
    [replica] = simulators("--speed", "20")
    gateway = await gateway_for([replica])
    body = chat(text(1, 300))
    name, _, _ = await ask(gateway, body)
    await settled(gateway, body, name)
    replica.post("/reset_prefix_cache", {})
    other = chat(text(2, 30))
    await ask(gateway, other)  # the clear goes out with this step
    await settled(gateway, other, name)
    told = (await gateway.admin.post("/admin/explain", json=body)).json()
    assert told["candidates"][0]["matched_tokens"]["confirmed_L0"] == 0


async def test_kill_9_breaks_only_the_streams_that_were_open_on_it(simulators, gateway_for):
    replicas = simulators("--speed", "1", count=3)
    gateway = await gateway_for(replicas)
    victim = replicas[0]
    name = victim.url.removeprefix("http://")

    async def stream(number):
        body = chat(text(number, 60), stream=True, max_tokens=60, ignore_eos=True)
        async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            content = await answer.aread()
        # An answer that had not begun is a 502 of ours, which names no replica: the victim's.
        return answer.headers.get("x-warmroute-replica", name), answer.status_code, content

    streams = [asyncio.create_task(stream(number)) for number in range(9)]
    await until(lambda: _in_flight(gateway, 9))
    await until(lambda: _decoding(victim))
    victim.process.kill()
    victim.process.join()  # until then its socket may still take a connection
    later = [await stream(number) for number in range(20, 26)]
    num_broken = 0
    for replica, status, content in [*await asyncio.gather(*streams), *later]:
        broken = b"data: [DONE]" not in content
        num_broken += broken
        assert not broken or replica == name
        assert status == 200 or (broken and status == 502)
        if broken:
            error = json.loads(content.strip().split(b"\n\n")[-1].removeprefix(b"data: "))
            assert error["error"]["reason"] == "stream_broken"
    assert num_broken, "on a slow machine some may have ended before, and not all"
    assert all(replica != name for replica, _, _ in later)
    assert await gateway.in_flight() == 0


async def _in_flight(gateway, number):
    return await gateway.in_flight() == number


async def _decoding(replica):
    return await asyncio.to_thread(replica.metric, "generation_tokens_total") > 0


async def test_replicas_without_events_are_served_by_history(simulators, gateway_for):
    replicas = simulators("--speed", "20", "--no-kv-events", count=2)
    gateway = await gateway_for(replicas)
    body = chat(text(1, 300))
    first, predicted, _ = await ask(gateway, body)
    again, repeated, actual = await ask(gateway, body)
    assert (predicted, first) == (0, again)
    assert repeated == actual > 0
    assert gateway.requests()[-1]["rung"] == "predicted"


async def test_session_and_round_robin_policies_end_to_end(simulators, gateway_for):
    replicas = simulators("--speed", "20", count=3)
    sticky = {"default": {"kind": "session"}}
    gateway = await gateway_for(replicas, policies=sticky)
    for session in ("a", "b", "c"):
        seen = set()
        for number in range(4):
            answer = await gateway.client.post(
                "/v1/chat/completions", json=chat(text(number)), headers={"X-Session-ID": session}
            )
            seen.add(answer.headers["x-warmroute-replica"])
        assert len(seen) == 1
    turns = await gateway_for(replicas, policies={"default": {"kind": "round_robin"}})
    order = [(await ask(turns, chat(text(1))))[0] for _ in range(6)]
    assert order[:3] == order[3:]
    assert len(set(order)) == 3
