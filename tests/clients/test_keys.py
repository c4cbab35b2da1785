"""API keys at work: a key file that changes, rates, models, and tenants that never meet."""

import asyncio
import hashlib
import json
import os
from random import Random
from unittest import mock

import pytest

from gateway.building import build_models
from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig
from tests.support.api_replicas import fields, says_hello
from tests.support.replicas import until

RED, BLUE, GREEN = "sk-red-0123456789", "sk-blue-0123456789", "sk-green-0123456789"
SIMULATED_MODEL = "loadtests/demo_model"
MESSAGES = [{"role": "user", "content": "hello"}]


def key(name, secret, **more):
    return {"name": name, "key": secret, **more}


async def ask(gateway, secret, path="/v1/chat/completions", **body):
    """Send one chat with a key."""
    return await gateway.client.post(
        path,
        json={"model": "m", "messages": MESSAGES, **body},
        headers={"authorization": f"Bearer {secret}"},
    )


async def status(gateway, secret):
    return (await ask(gateway, secret)).status_code


# The key file


@pytest.fixture
def key_file(tmp_path):
    """Write the key file as deployments do: beside it, and then renamed over it."""
    path = tmp_path / "keys.yaml"

    def write(content):
        new = tmp_path / "keys.yaml.new"
        new.write_text(content if isinstance(content, str) else json.dumps({"keys": content}))
        os.replace(new, path)  # noqa: PTH105 - the call that this is about
        return str(path)

    return write


def lines_about_keys(gateway):
    return [line for line in gateway.log if line["event"].startswith("keys_file")]


async def becomes(gateway, secret, expected):
    async def condition():
        return await status(gateway, secret) == expected

    await until(condition, f"{expected} for a key")


async def test_a_changed_key_file_is_in_force_without_a_restart(replicas, gateways, key_file):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth={"keys_file": key_file([key("red", RED)])})
    assert [await status(gateway, secret) for secret in (RED, BLUE)] == [200, 401]
    key_file([key("blue", BLUE)])
    await becomes(gateway, BLUE, 200)
    assert await status(gateway, RED) == 401, "a key that was taken out lets nobody in"


async def test_a_broken_key_file_changes_nothing_and_is_one_line_in_the_log(
    replicas, gateways, key_file
):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth={"keys_file": key_file([key("red", RED)])})
    key_file(f"keys:\n- name: blue\n  key: {BLUE}\n  modles: []\n")
    [line] = await until(lambda: lines_about_keys(gateway))
    assert line["event"] == "keys_file_broken"
    assert "modles" in str(line)
    assert BLUE not in str(gateway.log)
    assert [await status(gateway, secret) for secret in (RED, BLUE)] == [200, 401]
    key_file("keys: [")
    await until(lambda: len(lines_about_keys(gateway)) == 2)
    assert await status(gateway, RED) == 200
    key_file([key("blue", BLUE)])
    await becomes(gateway, BLUE, 200)
    events = [line["event"] for line in lines_about_keys(gateway)]
    assert events == ["keys_file_broken", "keys_file_broken", "keys_file_loaded"]


async def test_a_key_file_that_disappears_changes_nothing(replicas, gateways, key_file, tmp_path):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth={"keys_file": key_file([key("red", RED)])})
    (tmp_path / "keys.yaml").unlink()
    [line] = await until(lambda: lines_about_keys(gateway))
    assert line["event"] == "keys_file_broken"
    assert await status(gateway, RED) == 200


async def test_a_key_file_that_changes_while_the_gateway_starts_is_read_again(
    replicas, gateways, key_file
):
    [replica] = await replicas(says_hello)

    async def slow(*args, **kwargs):  # as it is where tokenizers have to be loaded
        key_file([key("blue", BLUE)])
        return await build_models(*args, **kwargs)

    with mock.patch("gateway.wiring.build_models", slow):
        gateway = await gateways(replica, auth={"keys_file": key_file([key("red", RED)])})
    await becomes(gateway, RED, 401)
    assert await status(gateway, BLUE) == 200


async def test_an_empty_key_file_lets_nobody_in(replicas, gateways, key_file):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth={"keys_file": key_file([])})
    answer = await gateway.client.post("/v1/chat/completions", json={"messages": MESSAGES})
    assert (answer.status_code, await status(gateway, RED)) == (401, 401)
    key_file([key("red", RED)])
    await becomes(gateway, RED, 200)
    key_file([])
    await becomes(gateway, RED, 401)


async def test_running_streams_outlive_their_key(replicas, gateways, key_file):
    release = asyncio.Event()

    async def script(conversation):
        await release.wait()
        await says_hello(conversation)

    [replica] = await replicas(script)
    gateway = await gateways(replica, auth={"keys_file": key_file([key("red", RED)])})
    running = asyncio.create_task(ask(gateway, RED, stream=True))
    await until(lambda: replica.received)
    key_file([])
    await until(lambda: lines_about_keys(gateway))
    release.set()
    assert (await running).content.endswith(b"[DONE]\n\n")
    assert await status(gateway, RED) == 401


async def test_a_key_by_its_digest_lets_in_and_the_digest_does_not(replicas, gateways):
    digest = hashlib.sha256(RED.encode()).hexdigest()
    [replica] = await replicas(says_hello)
    keys = [{"name": "red", "sha256": digest.upper()}]
    gateway = await gateways(replica, auth={"keys": keys})
    assert [await status(gateway, secret) for secret in (RED, digest)] == [200, 401]


# Rates and models


async def test_each_key_has_a_rate_of_its_own(replicas, gateways):
    [replica] = await replicas(says_hello)
    keys = [key("red", RED, requests_per_minute=6), key("blue", BLUE)]
    gateway = await gateways(replica, auth={"keys": keys})
    assert await status(gateway, RED) == 200
    refused = await ask(gateway, RED)
    assert (refused.status_code, refused.json()["error"]["reason"]) == (429, "rate_limited")
    assert 8 <= int(refused.headers["retry-after"]) <= 10, "six a minute are one in ten seconds"
    assert [await status(gateway, BLUE) for _ in range(20)] == [200] * 20
    assert len(replica.received) == 21


async def test_a_rate_is_used_up_by_every_path_that_costs_something(replicas, gateways):
    [replica] = await replicas(says_hello)
    keys = [key("red", RED, requests_per_minute=6)]
    gateway = await gateways(replica, auth={"keys": keys})
    assert (await ask(gateway, RED, "/v1/completions", prompt="x")).status_code == 200
    assert (await ask(gateway, RED, "/v1/embeddings", input="x")).status_code == 429
    for path in ("/livez", "/readyz", "/ping"):
        assert (await gateway.client.get(path)).status_code == 200, "probes have no rate"


async def test_wrong_keys_use_up_nobodys_rate(replicas, gateways):
    [replica] = await replicas(says_hello)
    keys = [key("red", RED, requests_per_minute=6)]
    gateway = await gateways(replica, auth={"keys": keys})
    assert {await status(gateway, RED[:-1]) for _ in range(10)} == {401}
    assert await status(gateway, RED) == 200


def two_models(first, second, **auth):
    models = [
        {"name": "small", "aliases": ["s"], "replicas": [{"url": first.url}]},
        {"name": "large", "replicas": [{"url": second.url}]},
    ]
    return GatewayConfig.model_validate({"models": models, "auth": auth})


async def test_a_key_reaches_its_models_and_no_others(replicas, gateways):
    small, large = await replicas(says_hello, says_hello)
    keys = [key("red", RED, models=["small"]), key("blue", BLUE)]
    gateway = await gateways(two_models(small, large, keys=keys))

    async def asks(secret, model):
        return (await ask(gateway, secret, model=model)).status_code

    assert await asks(RED, "small") == 200
    assert await asks(RED, "large") == 403
    assert await asks(RED, "unknown") in (403, 404)
    assert await asks(BLUE, "large") == await asks(BLUE, "small") == 200
    assert len(large.received) == 1, "the refused one did not arrive"
    refused = (await ask(gateway, RED, model="large")).json()["error"]
    assert (refused["reason"], refused["type"]) == ("forbidden", "PermissionDeniedError")


async def test_a_model_that_a_key_may_not_use_has_no_second_door(replicas, gateways):
    """Duplicate keys, other paths and other content types must not read the name differently."""
    small, large = await replicas(says_hello, says_hello)
    gateway = await gateways(two_models(small, large, keys=[key("red", RED, models=["small"])]))
    bearer = {"authorization": f"Bearer {RED}"}
    doubled = b'{"model":"small","model":"large","messages":[{"role":"user","content":"x"}]}'
    answer = await gateway.client.post("/v1/chat/completions", content=doubled, headers=bearer)
    assert answer.status_code in (400, 403)
    for path in ("/invocations", "/v1/messages", "/v1/responses", "/tokenize", "/v1/embeddings"):
        answer = await ask(gateway, RED, path, model="large", input="x")
        assert (path, answer.status_code) == (path, 403)
    form = {"model": (None, "large"), "file": ("a.wav", b"RIFF")}
    path = "/v1/audio/transcriptions"
    assert (await gateway.client.post(path, files=form, headers=bearer)).status_code == 403
    assert large.received == []


# Tenants

ISOLATED = {"by": "api_key"}


async def test_tenants_send_salts_of_their_own_and_every_other_byte_unchanged(replicas, gateways):
    [replica] = await replicas(says_hello)
    keys = [key("red", RED), key("blue", BLUE)]
    gateway = await gateways(replica, auth={"keys": keys}, isolation=ISOLATED)
    body = b'{ "model" : "m","x":1.50, "messages":[{"role":"user","content":"\\u00e9}"}] \n}\n'
    for secret in (RED, BLUE, RED):
        answer = await gateway.client.post(
            "/v1/chat/completions", content=body, headers={"authorization": f"Bearer {secret}"}
        )
        assert answer.status_code == 200
    salts = [fields(received)["cache_salt"] for received in replica.received]
    assert salts[0] == salts[2] != salts[1]
    assert all(1 <= len(salt) <= 1024 for salt in salts)
    head, brace, tail = body.rpartition(b"}")
    for received, salt in zip(replica.received, salts, strict=True):
        assert received.body == head + b',"cache_salt":"%b"' % salt.encode() + brace + tail
    assert "red" not in salts[0]


async def test_a_salt_of_the_client_separates_within_its_tenant_only(replicas, gateways):
    [replica] = await replicas(says_hello)
    keys = [key("red", RED), key("blue", BLUE)]
    gateway = await gateways(replica, auth={"keys": keys}, isolation=ISOLATED)
    asked = [(RED, {}), (RED, {"cache_salt": "a"}), (RED, {"cache_salt": "b"})]
    asked += [(BLUE, {"cache_salt": "a"}), (RED, {"cache_salt": "a"})]
    for secret, body in asked:
        assert (await ask(gateway, secret, **body)).status_code == 200
    # What an engine takes of a doubled name is the last one, as every parser here does.
    salts = [fields(received)["cache_salt"] for received in replica.received]
    assert len(set(salts)) == 4
    assert salts[1] == salts[4]
    taken = {fields(replica.received[0])["cache_salt"]}
    copied = await ask(gateway, BLUE, cache_salt=taken.pop())
    assert copied.status_code == 200
    assert fields(replica.received[-1])["cache_salt"] not in salts, "another's salt is no key to it"


async def test_every_path_with_a_prompt_gets_the_salt(replicas, gateways):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, auth={"keys": [key("red", RED)]}, isolation=ISOLATED)
    paths = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/invocations")
    for path in paths:
        answer = await ask(gateway, RED, path, prompt="x", input="x")
        assert (path, answer.status_code) == (path, 200)
    salts = {fields(received).get("cache_salt") for received in replica.received}
    assert len(salts) == 1
    assert None not in salts


WORDS = ("river", "house", "mountain", "people", "water", "light", "stone", "garden")


def long_prompt(seed):
    rng = Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(300))


@pytest.mark.parametrize("inject", [True, False])
async def test_tenants_never_get_each_others_matches(gateways, simulator, inject):
    """On a real cache: what one tenant warmed is cold for the other, here and in the engine."""
    auth = {"keys": [key("red", RED), key("blue", BLUE), key("green", GREEN)]}
    isolation = {"by": "api_key", "inject_cache_salt": inject}
    config = config_from_flags([simulator.url], SIMULATED_MODEL)
    gateway = await gateways(config, auth=auth, isolation=isolation)
    await until(lambda: follows(gateway), "the event stream")
    messages = [{"role": "user", "content": long_prompt(11 if inject else 12)}]

    async def cached(secret):
        answer = await ask(gateway, secret, model="demo-model", max_tokens=2, messages=messages)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        matched = int(answer.headers["x-warmroute-matched-tokens"])
        return matched, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    matched, hit, length = await cached(RED)
    assert (matched, hit) == (0, 0)
    await until(lambda: becomes_warm(cached, RED), "the tenant's own cache")
    for other in (BLUE, GREEN):
        matched, hit, _ = await cached(other)
        assert matched == 0, "nothing of another tenant is expected"
        # Without the salt in the body the engine shares what it has; routing alone is separate.
        assert hit == (0 if inject else (length - 1) // 16 * 16)


async def follows(gateway):
    replicas = [r for m in (await gateway.status())["models"] for r in m["replicas"]]
    return all(replica["follows_events"] for replica in replicas)


async def becomes_warm(cached, secret):
    matched, hit, length = await cached(secret)
    return hit == (length - 1) // 16 * 16 == matched


async def test_tenants_by_header_are_separate_and_the_header_is_required(replicas, gateways):
    [replica] = await replicas(says_hello)
    gateway = await gateways(replica, isolation={"by": "header", "header": "x-team"})
    answers = [
        await gateway.client.post(
            "/v1/chat/completions", json={"model": "m", "messages": MESSAGES}, headers=headers
        )
        for headers in ({"x-team": "red"}, {"x-team": "blue"}, {})
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert answers[2].json()["error"]["reason"] == "invalid_request"
    one, two = [fields(received)["cache_salt"] for received in replica.received]
    assert one != two
