"""What /admin/explain says of a request is what the gateway then does with it."""

import asyncio
import gzip
import hashlib
import json

import pytest

from gateway.config.models import GatewayConfig
from tests.support.api_replicas import ApiReplica, KeepsResponses
from tests.support.engines import Engine
from tests.support.replicas import until
from tests.support.shared_caches import with_shared_cache

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SESSION, NEW_SESSION = "x-amzn-sagemaker-session-id", "x-amzn-sagemaker-new-session-id"
SIZE = 4
ROUND_ROBIN = {"default": {"kind": "round_robin"}}


async def answers(conversation):
    await conversation.answer(b"{}")


async def opens_sessions(conversation):
    """Name each new session after the replica that opens it."""
    extra = b""
    if conversation.request.header(SESSION.encode()) == b"NEW_SESSION":
        port = conversation.writer.get_extra_info("sockname")[1]
        extra = b"%b: s-%d\r\n" % (NEW_SESSION.encode(), port)
    await conversation.answer(b"{}", extra=extra)


async def nothing_cached(conversation):
    prompt = json.loads(conversation.request.body)["prompt"]
    usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": 0}}
    body = {"choices": [{"text": "a"}], "usage": {**usage, "completion_tokens": 1}}
    await conversation.answer(json.dumps(body, separators=(",", ":")).encode())


def completion(num_blocks, first=0):
    prompt = [*range(first, first + num_blocks * SIZE), 9999]
    return {"model": "m", "prompt": prompt, "max_tokens": 1}


async def explained(gateway, body, path=CHAT, api_key="", **headers):
    asked = {"path": path, "api_key": api_key}
    return await gateway.admin.post("/admin/explain", params=asked, json=body, headers=headers)


async def agreed(gateway, body, path=CHAT, secret="", api_key="", **headers):
    """Compare an explanation with the answer that the request then gets, and return it."""
    told = (await explained(gateway, body, path, api_key, **headers)).json()
    if secret:
        headers["authorization"] = f"Bearer {secret}"
    answer = await gateway.client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    got = {
        name: answer.headers.get(f"x-warmroute-{name}") for name in ("replica", "reason", "rule")
    }
    assert got == {name: told.get(name) for name in got}
    if len(told["pools"]) > 1:
        assert answer.headers["x-warmroute-pool"] == told["pool"]
    kind = None if told["policy"] is None else told["policy"]["kind"]
    assert answer.headers.get("x-warmroute-policy") == kind
    matches = {c["replica"]: c["matched_tokens"] for c in told["candidates"]}
    match = matches.get(told["replica"], {})
    matched = sum(match.get(tier, 0) for tier in ("L0", "L1", "L2"))
    assert answer.headers["x-warmroute-matched-tokens"] == str(matched)
    if "x-warmroute-tiers" in answer.headers:
        prices = {candidate["replica"]: candidate["price"] for candidate in told["candidates"]}
        assert answer.headers["x-warmroute-tiers"] == as_header(prices[told["replica"]])
    return told


def as_header(price):
    parts = ((name, part["tokens"], part["seconds"]) for name, part in price.items())
    return ", ".join(
        f"{name}={tokens}/{seconds:.4f}" if name != "L0" else f"L0={tokens}/0"
        for name, tokens, seconds in parts
    )


async def refused_alike(gateway, body, path=CHAT, secret="", api_key="", **headers):
    told = await explained(gateway, body, path, api_key, **headers)
    if secret:
        headers["authorization"] = f"Bearer {secret}"
    answer = await gateway.client.post(path, json=body, headers=headers)
    assert answer.status_code >= 400
    assert (told.status_code, told.json()) == (answer.status_code, answer.json())
    return told.json()["error"]["reason"]


async def hold(gateway, replica, operation="cordon"):
    answer = await gateway.admin.post(f"/admin/replicas/{replica.name}/{operation}")
    assert answer.status_code == 200


async def test_a_session_goes_home_whatever_the_policy_says(replicas, gateways, chat):
    fleet = await replicas(*[opens_sessions] * 3)
    gateway = await gateways(*fleet, policies=ROUND_ROBIN)
    for _ in fleet:
        await gateway.client.post(CHAT, json=chat(), headers={SESSION: "NEW_SESSION"})
    for home in [*fleet, *fleet]:
        told = await agreed(gateway, chat(), **{SESSION: f"s-{home.port}"})
        assert (told["replica"], told["reason"], told["home"]) == (home.name, "session", home.name)
        assert told["tries"][0] == home.name
        assert (len(told["candidates"]), told["load_cap"]) == (3, None)
    told = await agreed(gateway, chat(), **{SESSION: "s-unknown"})
    assert (told["reason"], told["home"]) == ("best", None)


async def test_a_session_stays_on_a_cordoned_home_and_leaves_one_that_drains(
    replicas, gateways, chat
):
    home, other = await replicas(opens_sessions, opens_sessions)
    gateway = await gateways(home, other)
    await hold(gateway, other)
    await gateway.client.post(CHAT, json=chat(), headers={SESSION: "NEW_SESSION"})
    session = {SESSION: f"s-{home.port}"}
    await hold(gateway, home)
    told = await agreed(gateway, chat(), **session)
    assert (told["replica"], told["reason"]) == (home.name, "session")
    assert (told["policy"], told["candidates"]) == (None, []), "nobody else may get it"
    assert gateway.requests()[-1]["replica"] == home.name
    assert await refused_alike(gateway, chat()) == "no_eligible_replica"
    await hold(gateway, other, "uncordon")
    told = await agreed(gateway, chat(), **session)
    assert told["tries"] == [home.name, other.name]
    assert [candidate["replica"] for candidate in told["candidates"]] == [other.name]
    await hold(gateway, home, "drain")
    assert (await agreed(gateway, chat(), **session))["replica"] == other.name


async def test_a_stored_response_is_asked_of_its_replica(engines, gateways):
    fleet = await engines(ApiReplica(KeepsResponses("a")), ApiReplica(KeepsResponses("b")))
    gateway = await gateways(*fleet)
    made = (await gateway.client.post("/v1/responses", json={"model": "m", "input": "x"})).json()
    path = f"/v1/responses/{made['id']}"
    answer = await gateway.client.get(path)
    assert (await explained(gateway, {}, path)).json() == {
        "replica": answer.headers["x-warmroute-replica"],
        "reason": "stored",
    }
    unknown = await explained(gateway, {}, "/v1/responses/resp_none")
    assert unknown.json() == (await gateway.client.get("/v1/responses/resp_none")).json()


def key(name, **fields):
    return {"name": name, "sha256": hashlib.sha256(f"sk-{name}".encode()).hexdigest(), **fields}


async def test_a_key_may_use_what_it_may_and_an_unknown_one_nothing(replicas, gateways, chat):
    [only] = await replicas(answers)
    keys = [key("all"), key("few", models=["other"])]
    models = [{"name": "m", "replicas": [{"url": only.url}]}]
    config = {"models": models, "auth": {"keys": keys}}
    gateway = await gateways(GatewayConfig.model_validate(config))
    await agreed(gateway, chat(), api_key="all", secret="sk-all")
    assert await refused_alike(gateway, chat(), api_key="few", secret="sk-few") == "forbidden"
    for unknown in ("", "nobody"):
        answer = await explained(gateway, chat(), api_key=unknown)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "api_key")


@pytest.mark.parametrize("by", ["api_key", "header"])
async def test_a_tenant_has_caches_of_its_own(engines, gateways, by):
    fleet = await engines(*(Engine(script=answers, block_size=SIZE) for _ in range(2)))
    models = [{"name": "m", "replicas": [{"url": replica.url} for replica in fleet]}]
    keys = [key("one"), key("two")]
    config = {"models": models, "auth": {"keys": keys}, "isolation": {"by": by}}
    gateway = await gateways(GatewayConfig.model_validate(config))

    body, one, two = completion(10), {"x-tenant-id": "one"}, {"x-tenant-id": "two"}
    headers = {"authorization": "Bearer sk-one", **one}
    await gateway.client.post(COMPLETIONS, json=body, headers=headers)
    told = await agreed(gateway, body, COMPLETIONS, "sk-one", "one", **one)
    assert sorted(c["matched_tokens"]["L0"] for c in told["candidates"]) == [0, 10 * SIZE]
    told = (await explained(gateway, body, COMPLETIONS, "two", **two)).json()
    assert [c["matched_tokens"]["L0"] for c in told["candidates"]] == [0, 0]
    if by == "header":
        reason = await refused_alike(gateway, body, COMPLETIONS, "sk-one", "one")
        assert reason == "invalid_request"


async def test_rules_pools_and_sessions_choose_alike(replicas, gateways, chat):
    stable, trial = await replicas(answers, answers)
    models = [
        {"name": "m", "pool": "stable", "weight": 3, "replicas": [{"url": stable.url}]},
        {"name": "m", "pool": "trial", "weight": 1, "replicas": [{"url": trial.url}]},
    ]
    rules = [
        {"name": "bank", "when": {"api_key": "bank"}, "pool": "trial"},
        {"name": "batch", "when": {"headers": {"x-batch": "1"}}, "policy": "batch"},
    ]
    policies = {"batch": {"kind": "least_loaded"}, **ROUND_ROBIN}
    auth = {"keys": [key("bank"), key("others")]}
    config = {"models": models, "auth": auth, "rules": rules, "policies": policies}
    gateway = await gateways(GatewayConfig.model_validate(config))
    told = await agreed(gateway, chat(), api_key="bank", secret="sk-bank")
    assert (told["pool"], told["rule"]) == ("trial", "bank")
    pools, others = set(), {"api_key": "others", "secret": "sk-others"}
    for number in range(20):
        headers = {"x-session-id": f"s-{number}", **({"x-batch": "1"} if number % 2 else {})}
        told = await agreed(gateway, chat(), **others, **headers)
        assert told["policy"]["name"] == ("batch" if number % 2 else "default")
        pools.add(told["pool"])
    assert pools == {"stable", "trial"}
    await hold(gateway, trial)
    for number in range(20):
        told = await agreed(gateway, chat(), **others, **{"x-session-id": f"s-{number}"})
        assert told["pool"] == "stable"


async def test_an_adapter_goes_where_it_is_loaded(engines, gateways, chat):
    listed = [{"id": "m"}, {"id": "sql", "parent": "m"}]
    fleet = await engines(Engine(), Engine(models=listed), Engine())
    gateway = await gateways(*fleet, policies=ROUND_ROBIN)
    for _ in range(3):
        told = await agreed(gateway, {**chat(), "model": "sql"})
        assert (told["replica"], told["reason"]) == (fleet[1].name, "only")


async def test_turns_and_weights(replicas, gateways, chat):
    fleet = await replicas(answers, answers, answers)
    gateway = await gateways(*fleet, policies=ROUND_ROBIN)
    assert {(await agreed(gateway, chat()))["replica"] for _ in range(3)} == {
        replica.name for replica in fleet
    }
    for replica, weight in zip(fleet, (1.0, 3.0, 0.5), strict=True):
        path = f"/admin/replicas/{replica.name}/weight"
        assert (await gateway.admin.put(path, json={"weight": weight})).status_code == 200
    for _ in range(12):
        await agreed(gateway, chat())


async def test_requests_of_another_policy_take_no_turn(replicas, gateways, chat):
    """Every second request is of a rule, and yet those in between go round."""
    fleet = await replicas(answers, answers)
    rules = [{"when": {"headers": {"x-batch": "1"}}, "policy": "batch"}]
    policies = {"batch": {"kind": "consistent_hash"}, **ROUND_ROBIN}
    gateway = await gateways(*fleet, policies=policies, rules=rules)
    went = []
    for _ in range(4):
        await agreed(gateway, chat(), **{"x-batch": "1"})
        went.append((await agreed(gateway, chat()))["replica"])
    assert went[0] != went[1]
    assert went == went[:2] * 2


@pytest.mark.parametrize(
    ("changes", "policy", "rung"),
    [
        ({}, "consistent_hash", "hashed"),
        ({"policies": {"default": {"kind": "session"}}}, "consistent_hash", "hashed"),
    ],
)
async def test_prompts_that_nobody_can_tokenize(replicas, gateways, chat, changes, policy, rung):
    fleet = await replicas(*[answers] * 4)
    gateway = await gateways(*fleet, **changes)
    for number in range(10):
        told = await agreed(gateway, chat(f"{number}"))
        assert (told["policy"]["kind"], told["rung"]) == (policy, rung)


async def test_token_ids_and_what_was_sent_before(engines, gateways):
    fleet = await engines(*(Engine(script=answers, block_size=SIZE) for _ in range(3)))
    gateway = await gateways(*fleet)
    first = await gateway.client.post(COMPLETIONS, json=completion(10))
    told = await agreed(gateway, completion(12), COMPLETIONS)
    assert (told["replica"], told["rung"]) == (first.headers["x-warmroute-replica"], "predicted")


async def test_a_replica_that_is_not_believed(engines, gateways):
    fleet = await engines(*(Engine(script=nothing_cached, block_size=SIZE) for _ in range(2)))
    gateway = await gateways(*fleet)
    await hold(gateway, fleet[1])
    for _ in range(6):
        assert (await gateway.client.post(COMPLETIONS, json=completion(10))).status_code == 200
    name = f'warmroute_replica_distrusted{{replica="{fleet[0].name}"}}'

    async def distrusted():
        return await gateway.metric(name) == 1

    await until(distrusted, "distrust")
    told = await agreed(gateway, completion(10), COMPLETIONS)
    assert told["candidates"][0]["matched_tokens"]["L0"] == 0


async def test_a_replica_that_is_not_believed_may_take_what_the_pool_has(engines, gateways):
    """Whatever was sent there since: of the prompt's 40 tokens the pool has 2 chunks of 16."""
    fleet = await engines(*(Engine(script=nothing_cached, block_size=SIZE) for _ in range(2)))
    pool = {"kind": "assume_write_through", "chunk_tokens": 16, "delay_s": 0.0}
    gateway = await gateways(with_shared_cache([replica.url for replica in fleet], pool))
    await hold(gateway, fleet[1])
    for _ in range(6):
        assert (await gateway.client.post(COMPLETIONS, json=completion(10))).status_code == 200
    name = f'warmroute_replica_distrusted{{replica="{fleet[0].name}"}}'
    assert await gateway.metric(name) == 1
    told = await agreed(gateway, completion(10), COMPLETIONS)
    matched = told["candidates"][0]["matched_tokens"]
    assert matched == {"L0": 0, "L1": 0, "L2": 32, "confirmed_L0": 0}


async def test_a_replica_at_its_cap(replicas, gateways):
    async def streams(conversation):
        if b"stream" in conversation.request.body:
            await conversation.start_stream()
            await conversation.chunk(b"data: 1\n\n")
            await conversation.client_left()
        await conversation.answer(b"{}")

    fleet = await replicas(streams, streams)
    policies = {"default": {"kind": "session", "load_bound": 1.0, "slack": 0}}
    gateway = await gateways(*fleet, policies=policies)
    session = {"x-session-id": "s"}
    owner = (await agreed(gateway, completion(1), COMPLETIONS, **session))["replica"]
    body = {**completion(1), "stream": True}
    async with gateway.client.stream("POST", COMPLETIONS, json=body, headers=session) as answer:
        assert answer.headers["x-warmroute-replica"] == owner
        told = await agreed(gateway, completion(1), COMPLETIONS, **session)
        assert (told["reason"], told["candidates"][0]["over_cap"]) == ("spill", True)
        assert told["tries"] == [told["replica"], owner]


async def test_a_replica_that_said_it_was_full(replicas, gateways, chat):
    async def is_full(conversation):
        full = b"retry-after: 5\r\n"
        await conversation.answer(b"{}", status=b"503 Service Unavailable", extra=full)

    full, free = await replicas(is_full, answers)
    gateway = await gateways(full, free, policies=ROUND_ROBIN)
    for _ in range(2):
        await gateway.client.post(CHAT, json=chat())
    assert len(full.received) == 1
    for _ in range(2):
        told = await agreed(gateway, chat())
        assert (told["replica"], told["reason"]) == (free.name, "only")


async def test_a_body_may_be_compressed_and_too_long(replicas, gateways, chat):
    [only] = await replicas(answers)
    gateway = await gateways(only, limits={"max_body_bytes": 1000})
    packed = gzip.compress(json.dumps(chat()).encode())
    headers = {"content-encoding": "gzip"}
    for ask, path in ((gateway.admin, "/admin/explain"), (gateway.client, CHAT)):
        answer = await ask.post(path, content=packed, headers=headers)
        assert answer.status_code == 200
    assert await refused_alike(gateway, chat("x" * 1000)) == "body_too_large"
    assert await refused_alike(gateway, {**chat(), "model": "nope"}) == "model_not_found"


async def test_an_explanation_books_nothing_and_many_at_once_agree(engines, gateways):
    fleet = await engines(*(Engine(script=answers, block_size=SIZE) for _ in range(2)))
    gateway = await gateways(*fleet)
    await gateway.client.post(COMPLETIONS, json=completion(10))
    told = await asyncio.gather(*(explained(gateway, completion(10), COMPLETIONS) for _ in "1234"))
    assert len({answer.json()["replica"] for answer in told}) == 1
    assert await gateway.in_flight() == 0
    assert [model["routed"] for model in (await gateway.status())["models"]] == [1]
