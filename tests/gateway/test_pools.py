"""Pools and rules over HTTP: who gets a request, and what log, headers, metrics and explain say."""

import hashlib
import json
from collections import Counter
from random import Random
from unittest import mock

from gateway.config.models import GatewayConfig
from tests.support.live import sections
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
POOL, RULE = "x-warmroute-pool", "x-warmroute-rule"


async def answers(conversation):
    await conversation.answer(b"{}")


def listed(replica):
    return [{"url": replica.url}]


def two_pools(stable, trial, **sections):
    models = [
        {"name": "m", "pool": "stable", "weight": 3, "replicas": listed(stable)},
        {"name": "m", "pool": "trial", "weight": 1, "replicas": listed(trial)},
    ]
    return GatewayConfig.model_validate({"models": models, **sections})


async def test_two_pools_share_a_name_by_their_weights(replicas, gateways, chat):
    stable, trial = await replicas(answers, answers)
    with mock.patch("gateway.wiring.Random", side_effect=lambda: Random(5)):
        gateway = await gateways(two_pools(stable, trial))
    got = Counter()
    for number in range(200):
        answer = await gateway.client.post(CHAT, json=chat(f"{number}"))
        assert answer.status_code == 200
        assert RULE not in answer.headers
        got[answer.headers[POOL]] += 1
        expected = {"stable": stable.name, "trial": trial.name}[answer.headers[POOL]]
        assert answer.headers["x-warmroute-replica"] == expected
    assert got["stable"] + got["trial"] == 200
    assert 130 <= got["stable"] <= 170, "150, and 3 standard deviations of 6.1"
    assert (len(stable.received), len(trial.received)) == (got["stable"], got["trial"])
    models = (await gateway.client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["m"]
    ended = 'warmroute_requests_total{model="trial",path="/v1/chat/completions",status="200"}'
    assert await gateway.metric(ended) == got["trial"]


async def test_a_session_stays_in_its_pool(replicas, gateways, chat):
    stable, trial = await replicas(answers, answers)
    gateway = await gateways(two_pools(stable, trial))
    pools = {}
    for turn in range(3):
        for number in range(20):
            headers = {"x-session-id": f"s-{number}"}
            answer = await gateway.client.post(CHAT, json=chat(f"{turn}"), headers=headers)
            assert pools.setdefault(number, answer.headers[POOL]) == answer.headers[POOL]
    assert set(pools.values()) == {"stable", "trial"}


async def test_a_pool_that_is_down_fails_nobody_and_is_counted(replicas, gateways, chat):
    stable, trial = await replicas(answers, answers)
    pin = {"name": "testers", "when": {"headers": {"x-trial": "yes"}}, "pool": "trial"}
    gateway = await gateways(two_pools(stable, trial, rules=[pin]), health={"interval_s": 0.05})
    trial.healthy = False
    await until(lambda: _states(gateway, {"ready", "ejected"}))
    for number in range(40):
        answer = await gateway.client.post(CHAT, json=chat(f"{number}"))
        assert (answer.status_code, answer.headers[POOL]) == (200, "stable")
    passed_over = await gateway.metric('warmroute_pool_failovers_total{model="trial"}')
    lines = [line for line in gateway.requests() if line.get("passed_over") == "trial"]
    assert 0 < passed_over == len(lines) < 40
    pinned = await gateway.client.post(CHAT, json=chat(), headers={"x-trial": "yes"})
    assert pinned.status_code == 503, "its rule says trial, and no other pool takes it"
    assert pinned.json()["error"]["reason"] == "no_eligible_replica"


async def _states(gateway, states):
    return set(await gateway.states()) == states


async def test_one_pool_a_name_adds_nothing_to_answers_and_log(replicas, gateways, chat):
    [only] = await replicas(answers)
    gateway = await gateways(only)
    answer = await gateway.client.post(CHAT, json=chat())
    assert {POOL, RULE}.isdisjoint(answer.headers)
    [line] = gateway.requests()
    assert {"rule", "passed_over"}.isdisjoint(line)


def key(name, secret):
    return {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest()}


async def test_a_tenants_key_has_a_pool_of_its_own(replicas, gateways, chat):
    shared, own = await replicas(answers, answers)
    config = GatewayConfig.model_validate(
        {
            "models": [
                {"name": "m", "replicas": listed(shared)},
                {"name": "m", "pool": "bank", "weight": 0, "replicas": listed(own)},
            ],
            "auth": {"keys": [key("bank", "sk-bank"), key("others", "sk-others")]},
            "rules": [{"name": "bank", "when": {"api_key": "bank"}, "pool": "bank"}],
        }
    )
    gateway = await gateways(config)
    for secret, replica in (("sk-bank", own), ("sk-others", shared)):
        for number in range(20):
            headers = {"authorization": f"Bearer {secret}"}
            answer = await gateway.client.post(CHAT, json=chat(f"{number}"), headers=headers)
            assert answer.headers["x-warmroute-replica"] == replica.name
    by_bank, by_others = gateway.requests()[0], gateway.requests()[-1]
    assert (by_bank["model"], by_bank["requested"], by_bank["rule"]) == ("bank", "m", "bank")
    assert by_others["model"] == "m"
    assert {"rule", "requested"}.isdisjoint(by_others)
    told = await gateway.admin.post("/admin/explain?api_key=bank", json=chat())
    told = told.json()
    assert (told["model"], told["pool"], told["rule"]) == ("m", "bank", "bank")
    assert (told["pools"], told["passed_over"]) == ({"m": 1.0, "bank": 0.0}, None)
    other = (await gateway.admin.post("/admin/explain?api_key=others", json=chat())).json()
    assert (other["pool"], other["rule"]) == ("m", None)


def lists(replica, *adapters):
    """Make a replica list adapters beside its model from now on."""

    async def probe(conversation):
        path = conversation.request.line.split()[1]
        entries = [{"id": "m"}, *({"id": name, "parent": "m"} for name in adapters)]
        if path == b"/v1/models":
            await conversation.answer(json.dumps({"data": entries}).encode())
        elif path == b"/health":
            await conversation.answer(b"")
        else:
            await conversation.answer(b"{}", status=b"404 Not Found")

    replica._probe = probe


async def test_an_adapter_is_asked_of_replicas_that_have_it_until_it_is_unloaded(
    replicas, gateways, chat
):
    has, has_not = await replicas(answers, answers)
    lists(has, "sql")
    lists(has_not)
    models = [{"name": "m", "replicas": [*listed(has), *listed(has_not)]}]
    rules = [{"when": {"lora": "sql"}, "policy": "spread"}]
    policies = {"spread": {"kind": "round_robin"}}
    config = {"models": models, "rules": rules, "policies": policies}
    gateway = await gateways(
        GatewayConfig.model_validate(config), health={"metrics_interval_s": 0.05}
    )
    await until(lambda: _served(gateway, {"m", "sql"}))
    for number in range(10):
        body = {**chat(f"{number}"), "model": "sql"}
        answer = await gateway.client.post(CHAT, json=body)
        assert answer.headers["x-warmroute-replica"] == has.name
        assert (answer.headers[RULE], answer.headers["x-warmroute-policy"]) == (
            "rules[0]",
            "round_robin",
        )
    assert gateway.requests()[0]["requested"] == "sql"
    lists(has_not, "sql")
    lists(has)
    await until(lambda: _asked_of(gateway, has_not, {**chat(), "model": "sql"}))
    lists(has_not)
    await until(lambda: _served(gateway, {"m"}))
    answer = await gateway.client.post(CHAT, json={**chat(), "model": "sql"})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (404, "model_not_found")


async def test_the_only_replica_that_has_an_adapter_is_asked_also_when_it_was_full(
    replicas, gateways, chat
):
    async def full_once(conversation):
        if has.received == [conversation.request]:
            await conversation.answer(b"{}", status=b"503 Service Unavailable")
        else:
            await conversation.answer(b"{}")

    has, has_not = await replicas(full_once, answers)
    lists(has, "sql")
    lists(has_not)
    gateway = await gateways(has, has_not, health={"metrics_interval_s": 0.05})
    await until(lambda: _served(gateway, {"m", "sql"}))
    body = {**chat(), "model": "sql"}
    assert (await gateway.client.post(CHAT, json=body)).status_code == 503
    told = (await gateway.admin.post("/admin/explain", json=body)).json()
    answer = await gateway.client.post(CHAT, json=body)
    assert (answer.status_code, told["replica"]) == (200, has.name)
    assert len(has.received) == 2


async def _served(gateway, names):
    data = (await gateway.client.get("/v1/models")).json()["data"]
    return {model["id"] for model in data} == names


async def _asked_of(gateway, replica, body):
    told = (await gateway.admin.post("/admin/explain", json=body)).json()
    return [one["replica"] for one in told.get("candidates", ())] == [replica.name]


async def test_an_address_that_two_pools_find_belongs_to_one_of_them(
    replicas, gateways, chat, tmp_path
):
    """The second is refused and told once, and takes it as soon as the first lets it go."""
    [one] = await replicas(answers)
    sections, files = [], []
    for pool in ("stable", "trial"):
        file = tmp_path / f"{pool}.yaml"
        file.write_text("[]\n")
        files.append(file)
        find = {"kind": "file", "path": str(file), "interval_s": 0.02}
        sections.append({"name": "m", "pool": pool, "discovery": [find]})
    gateway = await gateways(GatewayConfig.model_validate({"models": sections}), wait_ready=False)
    files[0].write_text(f"- {one.url}\n")
    await until(lambda: _replicas(gateway, [[one.name], []]))
    files[1].write_text(f"- {{url: '{one.url}', name: another}}\n")
    await until(lambda: _refused(gateway))
    assert await _replicas(gateway, [[one.name], []])
    [line] = _refused(gateway)
    assert (line["url"], line["model"], line["owner"]) == (one.url, "trial", "stable")
    files[0].write_text("[]\n")
    await until(lambda: _replicas(gateway, [[], ["another"]]))
    await until(lambda: _states(gateway, {"ready"}))
    answer = await gateway.client.post(CHAT, json=chat())
    assert (answer.status_code, answer.headers[POOL]) == (200, "trial")
    assert len(_refused(gateway)) == 1


def _refused(gateway):
    return [line for line in gateway.log if line["event"] == "replica_refused"]


async def _replicas(gateway, expected):
    models = (await gateway.status())["models"]
    return [[replica["id"] for replica in model["replicas"]] for model in models] == expected


async def test_two_models_that_swap_their_replicas_in_a_reload_refuse_none(replicas, live):
    one, two = await replicas(answers, answers)

    def each(**replica_by_model):
        models = replica_by_model.items()
        return sections(models=[{"name": n, "replicas": [{"url": r.url}]} for n, r in models])

    gateway = await live(each(a=one, b=two))
    answer = await gateway.reload(each(a=two, b=one))
    assert answer.json()["result"] == "applied"
    assert await _replicas(gateway.gateway, [[two.name], [one.name]])
    await until(lambda: _states(gateway.gateway, {"ready"}))
    assert gateway.told("replica_refused") == []
