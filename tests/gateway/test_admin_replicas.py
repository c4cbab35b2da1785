"""Operators hold, drain and weigh replicas over the admin API; clients notice nothing."""

import asyncio
from urllib.parse import quote

import pytest

from gateway.config.models import GatewayConfig
from tests.support.replicas import WAIT_S, until

SESSION = "x-amzn-sagemaker-session-id"


async def says_hello(conversation):
    await conversation.answer(b'{"choices":[]}')


async def opens_sessions(conversation):
    opened = b"x-amzn-sagemaker-new-session-id: s-1; Expires=2030-01-01T00:00:00Z\r\n"
    await conversation.answer(b'{"choices":[]}', extra=opened)


async def stores_a_response(conversation):
    await conversation.answer(b'{"id": "resp_1", "object": "response"}')


async def went_to(gateway, chat, times=20, **headers):
    """Return which replicas got some different chats."""
    seen = set()
    for number in range(times):
        answer = await gateway.client.post(
            "/v1/chat/completions", json=chat(f"{number}"), headers=headers
        )
        assert answer.status_code == 200
        seen.add(answer.headers["x-warmroute-replica"])
    return seen


async def say(gateway, replica, operation, **options):
    answer = await gateway.admin.post(f"/admin/replicas/{replica.name}/{operation}", **options)
    assert answer.status_code == 200
    return answer.json()


async def test_a_cordoned_replica_gets_nothing_new_and_comes_back(replicas, gateways, chat):
    one, two = await replicas(says_hello, says_hello)
    gateway = await gateways(one, two)
    told = await say(gateway, one, "cordon", json={"reason": "node 7, ticket 12"})
    assert (told["state"], told["reason"], told["alive"]) == ("cordoned", "operator", True)
    assert 0.0 <= told["hold"].pop("for_s") < WAIT_S
    assert told["hold"] == {"state": "cordoned", "reason": "node 7, ticket 12"}
    assert await went_to(gateway, chat) == {two.name}
    labels = f'{{replica="{one.name}",state="cordoned"}}'
    assert await gateway.metric(f"warmroute_replica_state{labels}") == 1.0
    told = await say(gateway, one, "uncordon")
    assert (told["state"], told["hold"]) == ("ready", None), "at once, as its last probe was good"
    assert [change["state"] for change in told["changes"]] == [
        "ready",
        "cordoned",
        "ready",
        "starting",
    ]
    assert await went_to(gateway, chat) == {one.name, two.name}


async def test_a_cordoned_replica_that_dies_is_shown_as_such(replicas, gateways):
    one, two = await replicas(says_hello, says_hello)
    gateway = await gateways(one, two)
    await say(gateway, one, "cordon")
    one.healthy = False

    async def is_dead():
        return not (await gateway.replica(one.name))["alive"]

    await until(is_dead)
    told = await gateway.replica(one.name)
    assert (told["state"], told["fault"]) == ("cordoned", "status_503")
    told = await say(gateway, one, "uncordon")
    assert (told["state"], told["reason"]) == ("ejected", "status_503")
    one.healthy = True

    async def is_ready():
        return (await gateway.replica(one.name))["state"] == "ready"

    await until(is_ready)


async def test_a_drain_waits_for_what_is_in_flight(replicas, gateways, chat):
    gate = asyncio.Event()

    async def streams(conversation):
        await conversation.start_stream()
        await conversation.chunk(b"data: 1\n\n")
        await gate.wait()
        await conversation.chunk(b"data: [DONE]\n\n")
        await conversation.end()

    [one] = await replicas(streams)
    gateway = await gateways(one)
    request = gateway.client.stream("POST", "/v1/chat/completions", json=chat(stream=True))
    async with request as answer:
        told = await say(gateway, one, "drain?wait_s=0.01")
        assert (told["state"], told["in_flight"], told["drained"]) == ("draining", 1, False)
        waiting = asyncio.create_task(say(gateway, one, "drain?wait_s=9"))
        gate.set()
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n"), "running requests go on"
    told = await waiting
    assert (told["state"], told["in_flight"], told["drained"]) == ("draining", 0, True)


async def test_a_wait_ends_when_somebody_ends_the_drain(replicas, gateways, chat):
    async def streams(conversation):
        await conversation.start_stream()
        await conversation.chunk(b"data: 1\n\n")
        await conversation.client_left()

    [one] = await replicas(streams)
    gateway = await gateways(one)
    request = gateway.client.stream("POST", "/v1/chat/completions", json=chat(stream=True))
    async with request:
        waiting = asyncio.create_task(say(gateway, one, "drain?wait_s=9"))

        async def drains():
            return await gateway.states() == ["draining"]

        await until(drains)
        await say(gateway, one, "uncordon")
        assert not (await waiting)["drained"]


async def test_sessions_stay_on_a_cordoned_replica_and_leave_a_draining_one(
    replicas, gateways, chat
):
    one, two = await replicas(opens_sessions, says_hello)
    gateway = await gateways(one, two)
    await say(gateway, two, "cordon")
    assert await went_to(gateway, chat, 1) == {one.name}
    await say(gateway, two, "uncordon")
    await say(gateway, one, "cordon")
    assert await went_to(gateway, chat, 5, **{SESSION: "s-1"}) == {one.name}
    await say(gateway, two, "cordon")
    assert await went_to(gateway, chat, 5, **{SESSION: "s-1"}) == {one.name}, "with nobody else"
    await say(gateway, two, "uncordon")
    await say(gateway, one, "drain")
    assert await went_to(gateway, chat, 5, **{SESSION: "s-1"}) == {two.name}


@pytest.mark.parametrize("operation", ["cordon", "drain"])
async def test_a_stored_response_is_asked_where_it_is(replicas, gateways, operation):
    one, two = await replicas(stores_a_response, stores_a_response)
    gateway = await gateways(one, two)
    body = {"model": "m", "input": "hello"}
    holder = (await gateway.client.post("/v1/responses", json=body)).headers["x-warmroute-replica"]
    await say(gateway, one if holder == one.name else two, operation)
    answer = await gateway.client.get("/v1/responses/resp_1")
    assert answer.headers["x-warmroute-replica"] == holder


async def test_a_hold_outlives_a_flap_of_the_discovery(replicas, gateways, tmp_path):
    [one] = await replicas(says_hello)
    listed = tmp_path / "replicas.yaml"
    listed.write_text(f"- {one.url}\n")
    source = {"kind": "file", "path": str(listed), "interval_s": 0.02}
    config = GatewayConfig.model_validate({"models": [{"name": "m", "discovery": [source]}]})
    gateway = await gateways(config, wait_ready=False)

    async def states_are(*states):
        return await gateway.states() == list(states)

    await until(lambda: states_are("ready"))
    await say(gateway, one, "cordon", json={"reason": "node 7"})
    await gateway.admin.put(f"/admin/replicas/{one.name}/weight", json={"weight": 2})
    listed.write_text("[]\n")
    await until(states_are)
    fleet = (await gateway.admin.get("/admin/replicas")).json()
    [gone], [absent] = fleet["gone"], fleet["absent"]
    assert (gone["id"], gone["url"], gone["was"]) == (one.name, one.url, "cordoned")
    assert (absent["id"], absent["hold"]["reason"], absent["weight"]) == (one.name, "node 7", 2.0)
    listed.write_text(f"- {one.url}\n")
    await until(lambda: states_are("cordoned"))
    assert (await gateway.replica(one.name))["weight"] == 2.0


async def test_a_weight_wins_over_the_configured_one_until_it_is_removed(replicas, gateways, chat):
    one, two = await replicas(says_hello, says_hello)
    # With nobody busy, each is drawn in proportion: 20 draws of one in a million.
    listed = [{"url": one.url, "weight": 3.0}, {"url": two.url, "weight": 1000.0}]
    config = {
        "models": [{"name": "m", "replicas": listed}],
        "policies": {"default": {"kind": "least_loaded"}},
    }
    gateway = await gateways(GatewayConfig.model_validate(config))
    url = f"/admin/replicas/{one.name}/weight"
    assert (await gateway.replica(one.name))["weight"] == 3.0
    told = (await gateway.admin.put(url, json={"weight": 0.001})).json()
    assert (told["weight"], told["configured_weight"]) == (0.001, 3.0)
    assert await gateway.metric(f'warmroute_replica_weight{{replica="{one.name}"}}') == 0.001
    assert await went_to(gateway, chat) == {two.name}
    explained = (await gateway.admin.post("/admin/explain", json=chat())).json()
    shown = {c["replica"]: (c["weight"], c["load_cap"]) for c in explained["candidates"]}
    assert shown == {one.name: (0.001, 1), two.name: (1000.0, 8)}
    told = (await gateway.admin.delete(url)).json()
    assert (told["weight"], told["configured_weight"]) == (3.0, 3.0)
    lines = [line for line in gateway.log if line["event"] == "operator"]
    assert [line["weight"] for line in lines] == [0.001, None]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"weight": 0}, "cordon"),
        ({"weight": -1}, "must be from 0.001 to 1000"),
        ({"weight": 1e9}, "must be from 0.001 to 1000"),
        ({"weight": "1"}, "valid number"),
        ({"weigth": 1}, "weight"),
        (None, "body"),
    ],
)
async def test_a_wrong_weight_is_refused_with_what_would_be_right(replicas, gateways, body, text):
    [one] = await replicas(says_hello)
    gateway = await gateways(one)
    answer = await gateway.admin.put(f"/admin/replicas/{one.name}/weight", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["reason"]) == (400, 400, "invalid_request")
    assert text in error["message"]


@pytest.mark.parametrize("reason", ["x" * 201, "two\nlines", "\x1b[31mred"])
async def test_a_reason_is_one_bounded_line(replicas, gateways, reason):
    [one] = await replicas(says_hello)
    gateway = await gateways(one)
    url = f"/admin/replicas/{one.name}/cordon"
    answer = await gateway.admin.post(url, json={"reason": reason})
    assert answer.status_code == 400
    assert await gateway.states() == ["ready"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("", "application/json"),
        ("2", "application/json"),
        ('{"weight": 2', "application/json"),
        ('{"weight": 2}', "application/x-www-form-urlencoded"),  # what curl says by itself
    ],
)
async def test_a_body_that_is_no_json_object_is_told_what_it_must_be(
    replicas, gateways, content, kind
):
    [one] = await replicas(says_hello)
    gateway = await gateways(one)
    url = f"/admin/replicas/{one.name}/weight"
    headers = {"content-type": kind}
    refused = await gateway.admin.put(url, content=content, headers=headers)
    told = refused.json()["error"]
    assert (refused.status_code, told["param"]) == (400, None)
    assert "JSON object, sent as `content-type: application/json`" in told["message"]


async def test_an_unknown_id_is_answered_with_near_ones(replicas, gateways):
    [one] = await replicas(says_hello)
    gateway = await gateways(one)
    answer = await gateway.admin.post(f"/admin/replicas/{one.name}1/cordon")
    error = answer.json()["error"]
    assert (answer.status_code, error["reason"]) == (404, "replica_not_found")
    assert error["message"].endswith(f"near it are {one.name}.")


async def test_ids_may_hold_any_character(replicas, gateways, tmp_path, monkeypatch):
    """A pod that moved is `name@host:port`; a data-parallel rank has a slash."""
    monkeypatch.setattr("gateway.replicas.membership._names", lambda *_: iter(["a/b@[::1]:80?%"]))
    [one] = await replicas(says_hello)
    gateway = await gateways(one)
    encoded = quote("a/b@[::1]:80?%", safe="")
    for path in (encoded, encoded.replace("%2F", "/")):
        answer = await gateway.admin.get(f"/admin/replicas/{path}")
        assert answer.json()["id"] == "a/b@[::1]:80?%"
        answer = await gateway.admin.post(f"/admin/replicas/{path}/cordon")
        assert answer.json()["state"] == "cordoned"


async def test_without_an_eligible_replica_the_answer_counts_the_states(replicas, gateways, chat):
    one, two = await replicas(says_hello, says_hello)
    gateway = await gateways(one, two)
    await say(gateway, one, "cordon")
    await say(gateway, two, "drain")
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    error = answer.json()["error"]
    assert (answer.status_code, error["reason"]) == (503, "no_eligible_replica")
    assert answer.headers["retry-after"] == "1"
    assert error["replicas"] == {"cordoned": 1, "draining": 1}
    assert "1 cordoned, 1 draining" in error["message"]


async def test_no_retry_goes_to_a_replica_that_was_taken_out_meanwhile(replicas, gateways, chat):
    def is_full_when_the_other_is_cordoned(other):
        async def script(conversation):
            await say(gateway, fleet[other], "cordon")
            await conversation.answer(b"", status=b"503 Service Unavailable")

        return script

    fleet = await replicas(*map(is_full_when_the_other_is_cordoned, (1, 0)))
    gateway = await gateways(*fleet)
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 503
    assert sum(len(replica.received) for replica in fleet) == 1


async def test_repeated_operations_are_logged_once(replicas, gateways):
    [one] = await replicas(says_hello)
    gateway = await gateways(one)
    for _ in range(3):
        await say(gateway, one, "cordon", json={"reason": "x"})
    lines = [line for line in gateway.log if line["event"] == "operator"]
    assert lines == [{"event": "operator", "replica": one.name, "hold": "cordoned", "note": "x"}]
    labels = f'{{reason="operator",replica="{one.name}",state="cordoned"}}'
    assert await gateway.metric(f"warmroute_replica_changes_total{labels}") == 1.0


async def test_a_discovery_with_a_problem_is_told_from_its_begin_to_its_end(
    replicas, gateways, tmp_path, monkeypatch
):
    monkeypatch.setattr("gateway.replicas.feeds.LOOK_INTERVAL_S", 0.01)
    [one] = await replicas(says_hello)
    listed = tmp_path / "replicas.yaml"
    source = {"kind": "file", "path": str(listed), "interval_s": 0.02}
    model = {"name": "m", "replicas": [{"url": one.url}], "discovery": [source]}
    gateway = await gateways(GatewayConfig.model_validate({"models": [model]}))

    def told():
        return [line for line in gateway.log if line["event"].startswith("discovery_")]

    await until(lambda: len(told()) == 1)
    [begun] = told()
    assert (begun["event"], begun["model"], begun["kind"]) == ("discovery_problem", "m", "file")
    assert str(listed) in begun["problem"]
    metric = 'warmroute_discovery_problem{kind="file",model="m"}'
    assert await gateway.metric(metric) == 1.0
    assert await gateway.metric(metric.replace("file", "static")) == 0.0
    [model] = (await gateway.status())["models"]
    assert [feed["problem"] is None for feed in model["discoveries"]] == [True, False]
    listed.write_text("[]\n")
    await until(lambda: len(told()) == 2)
    assert told()[1] == {"event": "discovery_recovered", "model": "m", "kind": "file"}
    assert await gateway.metric(metric) == 0.0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/admin/nothing", 404), ("DELETE", "/admin/status", 405)],
)
async def test_every_error_has_the_shape_of_the_public_api(
    replicas, gateways, method, path, status
):
    [one] = await replicas(says_hello)
    gateway = await gateways(one)
    answer = await gateway.admin.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
