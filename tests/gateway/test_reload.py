"""Live configuration: what a reload changes, what it keeps, and what a broken file does."""

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from unittest import mock

import httpx
import pytest

from gateway.building import build_models
from gateway.cli import main
from tests.support.certificates import Authority
from tests.support.gateways import all_ready
from tests.support.live import HERE, SOON_S, sections, write
from tests.support.processes import gateway_process
from tests.support.replicas import until

CHAT = "/v1/chat/completions"


async def answers(conversation):
    await conversation.answer(b'{"choices": []}')


async def test_the_next_request_is_routed_by_the_new_policy_and_the_answer_says_what_changed(
    replicas, live, chat
):
    (replica,) = await replicas(answers)
    policies = {"p": {"kind": "least_loaded"}}
    gateway = await live(sections(replica, policies=policies, default_policy="p"))
    before = await gateway.client.post(CHAT, json=chat())
    policies = {"p": {"kind": "round_robin"}}
    answer = await gateway.reload(sections(replica, policies=policies, default_policy="p"))
    after = await gateway.client.post(CHAT, json=chat())
    names = [r.headers["x-warmroute-policy"] for r in (before, after)]
    assert names == ["least_loaded", "round_robin"]
    assert answer.json()["result"] == "applied"
    assert 'policies.p.kind: "least_loaded" -> "round_robin"' in answer.json()["changes"]
    applied = gateway.told("config_applied")
    assert [(line["trigger"], line["changes"]) for line in applied] == [
        ("operator", answer.json()["changes"])
    ]


async def test_the_same_file_again_changes_nothing_and_logs_nothing(replicas, live):
    (replica,) = await replicas(answers)
    gateway = await live(sections(replica))
    answer = await gateway.reload()
    assert answer.json() == {"result": "unchanged", "changes": [], "needs_restart": []}
    assert gateway.told("config_applied") == []
    assert await gateway.gateway.metric('warmroute_config_reloads_total{result="unchanged"}') >= 1


async def test_a_start_is_not_followed_by_a_reload_of_the_same_file(replicas, live, tmp_path):
    (replica,) = await replicas(answers)
    values = sections(replica)
    values["models"][0]["tokenizer"] = str(tmp_path / "none")
    gateway = await live(values, watched=True)
    gateway.write({**values, "limits": {"max_in_flight": 3}})
    await until(lambda: gateway.told("config_applied"), "the first change")
    assert len(gateway.told("tokenizer_unavailable")) == 2, "at the start and with the change"


async def test_streams_loads_and_learned_names_outlive_a_reload(replicas, live, chat):
    go_on = asyncio.Event()

    async def slow(conversation):
        await conversation.start_stream()
        await conversation.chunk(b"data: 1\n\n")
        await go_on.wait()
        await conversation.chunk(b"data: [DONE]\n\n")
        await conversation.end()

    (replica,) = await replicas(slow)
    values = sections(replica)
    del values["models"][0]["name"]  # so that the replica has to tell
    gateway = await live(values)
    async with gateway.client.stream("POST", CHAT, json=chat(stream=True)) as stream:
        pieces = stream.aiter_raw()
        assert await anext(pieces) == b"data: 1\n\n"
        reloaded = await gateway.reload({**values, "limits": {"max_in_flight": 7}})
        assert reloaded.json()["changes"] == ["limits.max_in_flight: 4096 -> 7"]
        assert await gateway.gateway.in_flight() == 1
        assert await gateway.gateway.states() == ["ready"], "nobody is asked again who he is"
        go_on.set()
        assert b"".join([piece async for piece in pieces]) == b"data: [DONE]\n\n"
    await until(lambda: _is(gateway.gateway.in_flight, 0))
    names = [model["id"] for model in (await gateway.client.get("/v1/models")).json()["data"]]
    assert names == ["m"]


async def _is(ask, value):
    return await ask() == value


async def test_replicas_come_and_go_with_the_list_and_the_others_stay_as_they_are(
    replicas, live, chat
):
    go_on = asyncio.Event()

    async def slow(conversation):
        await go_on.wait()
        await conversation.answer(b'{"whole": true}')

    leaving, staying, new = await replicas(slow, answers, answers)
    policies = {"default": {"kind": "round_robin"}}  # some for each of them
    gateway = await live(sections(leaving, staying, policies=policies))
    since = (await gateway.gateway.replica(staying.name))["for_s"]
    waiting = [asyncio.create_task(gateway.client.post(CHAT, json=chat(f"{n}"))) for n in range(9)]
    await until(lambda: leaving.received)
    probes = len(staying.probes)
    await gateway.reload(sections(staying, new, policies=policies))
    await until(lambda: all_ready(gateway.gateway))
    num_left = len(leaving.received)
    answered = [await gateway.client.post(CHAT, json=chat(f"{n}")) for n in range(20)]
    assert {a.headers["x-warmroute-replica"] for a in answered} == {staying.name, new.name}
    go_on.set()
    assert [a.status_code for a in await asyncio.gather(*waiting)] == [200] * 9
    assert len(leaving.received) == num_left, "it gets no request any more"
    assert (await gateway.gateway.replica(staying.name))["for_s"] >= since
    await until(lambda: len(staying.probes) > probes)


async def test_models_come_and_go(replicas, live, chat):
    (one,) = await replicas(answers)
    (two,) = await replicas(answers, model="other")
    first = sections(one)
    second = {"name": "other", "replicas": [{"url": two.url}]}
    gateway = await live(first)
    unknown = await gateway.client.post(CHAT, json=chat() | {"model": "other"})
    await gateway.reload({**first, "models": [*first["models"], second]})
    await until(lambda: all_ready(gateway.gateway))
    known = await gateway.client.post(CHAT, json=chat() | {"model": "other"})
    await gateway.reload({**first, "models": [second]})
    gone = await gateway.client.post(CHAT, json=chat())
    statuses = [answer.status_code for answer in (unknown, known, gone)]
    assert statuses == [404, 200, 404]
    assert [line["replica"] for line in gateway.told("replica_state")][-1] == one.name


async def test_the_gauges_of_a_model_go_with_it(replicas, live):
    one, other = await replicas(answers, answers)
    values = sections(one)
    second = {"name": "n", "replicas": [{"url": other.url}]}
    gateway = await live({**values, "models": [*values["models"], second]})

    async def shown():
        page = (await gateway.admin.get("/metrics")).text
        return {line.split("{")[0] for line in page.splitlines() if 'model="n"' in line}

    assert await shown() >= {"warmroute_skew_ratio", "warmroute_tokenizer_loaded"}
    await gateway.reload(values)
    assert await shown() == set()


async def test_a_replica_may_move_from_one_model_to_another(replicas, live, chat):
    (replica,) = await replicas(answers)
    values = sections(replica)
    gateway = await live(values)
    moved = {"name": "n", "replicas": [{"url": replica.url}]}
    await gateway.reload({**values, "models": [moved]})
    await until(lambda: all_ready(gateway.gateway))
    assert (await gateway.client.post(CHAT, json=chat() | {"model": "n"})).status_code == 200


async def test_what_is_configured_of_a_replica_changes_in_place(replicas, live, chat):
    (replica,) = await replicas(answers)
    values = sections(replica)
    gateway = await live(values)
    model = {**values["models"][0], "api_key": "upstream-1", "block_size": 32}
    model["replicas"] = [{"url": replica.url, "weight": 2.5}]
    await gateway.reload({**values, "models": [model]})
    assert await gateway.gateway.states() == ["ready"], "no moment without it"
    await gateway.client.post(CHAT, json=chat())
    assert replica.received[-1].header(b"authorization") == b"Bearer upstream-1"
    shown = await gateway.gateway.replica(replica.name)
    assert (shown["block_size"], shown["weight"]) == (32, 2.5)


async def test_a_broken_file_changes_nothing_and_says_what_is_wrong(replicas, live, chat):
    (replica,) = await replicas(answers)
    gateway = await live(sections(replica))
    answer = await gateway.reload("models:\n  - name: m\n    replicas: 3\nlimit: {}\n")
    error = answer.json()["error"]
    assert (answer.status_code, error["reason"]) == (400, "config_invalid")
    assert [problem.split(": ")[:2] for problem in error["problems"]] == [
        [f"{gateway.path}:3", "models[0].replicas"],
        [f"{gateway.path}:4", "limit"],
    ]
    assert (await gateway.client.post(CHAT, json=chat())).status_code == 200
    assert await gateway.gateway.metric("warmroute_config_valid") == 0
    assert len(gateway.told("config_refused")) == 1
    mended = await gateway.reload(sections(replica))
    assert mended.json()["result"] == "unchanged"
    assert await gateway.gateway.metric("warmroute_config_valid") == 1


@pytest.mark.parametrize("broken", ["tokenizer", "keys_file", "ca_file"])
async def test_a_file_that_cannot_be_used_changes_nothing(replicas, live, broken, tmp_path):
    (replica,) = await replicas(answers)
    values = sections(replica)
    gateway = await live(values)
    missing = str(tmp_path / "missing")
    model = values["models"][0]
    changed = {
        "tokenizer": {**values, "models": [{**model, "tokenizer": missing}]},
        "keys_file": {**values, "auth": {"keys_file": missing}},
        "ca_file": {**values, "models": [{**model, "tls": {"ca_file": missing}}]},
    }[broken]
    answer = await gateway.reload({**changed, "default_policy": "default"})
    assert answer.status_code == 400
    assert missing in str(answer.json()["error"]["problems"])
    assert (await gateway.reload(values)).json()["result"] == "unchanged"


async def test_a_file_that_was_refused_for_what_was_missing_is_taken_once_that_is_there(
    replicas, live, tmp_path
):
    (replica,) = await replicas(answers)
    gateway = await live(sections(replica), watched=True)
    keys = tmp_path / "keys.yaml"
    with mock.patch("gateway.reload.RETRY_INTERVAL_S", SOON_S):
        gateway.write(sections(replica, auth={"keys_file": str(keys)}))
        await until(lambda: gateway.told("config_refused"), "the refusal")
        write(keys, {"keys": [{"name": "t", "key": "sk-1"}]})
        await until(lambda: gateway.told("config_applied"), "the next try")
    assert [line["trigger"] for line in gateway.told("config_applied")] == ["retry"]
    assert len(gateway.told("config_refused")) == 1, "told once, tried often"


async def test_a_model_that_keeps_its_pool_is_renamed_without_a_gap(replicas, live, chat):
    (replica,) = await replicas(answers)
    values = sections(replica)
    gateway = await live(values)
    renamed = {**values["models"][0], "name": "n", "pool": "m"}
    assert (await gateway.reload({**values, "models": [renamed]})).json()["result"] == "applied"
    assert await gateway.gateway.states() == ["ready"]
    answer = await gateway.client.post(CHAT, json={**chat(), "model": "n"})
    assert answer.status_code == 200


async def test_a_mended_file_that_says_what_runs_is_told(replicas, live):
    (replica,) = await replicas(answers)
    gateway = await live(sections(replica))
    await gateway.reload("models: 3")
    await gateway.reload(sections(replica))
    await gateway.reload()
    assert [line["trigger"] for line in gateway.told("config_recovered")] == ["operator"]


async def test_what_needs_a_restart_is_told_until_it_is_done_and_the_rest_is_applied(
    replicas, live, chat
):
    (replica,) = await replicas(answers)
    values = sections(replica)
    gateway = await live(values)
    moved = {**values, "listen": {**HERE, "port": 1}, "limits": {"max_in_flight": 9}}
    for expected in ("applied", "unchanged"):
        answer = (await gateway.reload(moved)).json()
        assert answer["result"] == expected
        assert answer["needs_restart"] == ["listen.port: 0 -> 1"]
    assert await gateway.gateway.metric("warmroute_config_needs_restart") == 1
    assert len(gateway.told("config_needs_restart")) == 1
    assert (await gateway.client.post(CHAT, json=chat())).status_code == 200
    assert (await gateway.reload(values)).json()["needs_restart"] == []


async def test_keys_come_into_force_with_the_file(replicas, live, chat):
    (replica,) = await replicas(answers)
    values = sections(replica)
    gateway = await live(values)
    key = {"authorization": "Bearer sk-1"}
    statuses = [(await gateway.client.post(CHAT, json=chat())).status_code]
    await gateway.reload({**values, "auth": {"keys": [{"name": "t", "key": "sk-1"}]}})
    for headers in ({}, key):
        answer = await gateway.client.post(CHAT, json=chat(), headers=headers)
        statuses.append(answer.status_code)
    assert b"sk-1" not in b"".join(bytes(str(line), "utf-8") for line in gateway.gateway.log)
    await gateway.reload(values)
    statuses.append((await gateway.client.post(CHAT, json=chat())).status_code)
    assert statuses == [200, 401, 200, 200]


async def test_a_key_that_is_revoked_during_a_reload_does_not_come_back_with_it(
    replicas, live, chat, tmp_path
):
    (replica,) = await replicas(answers)
    values = sections(replica, auth={"keys_file": str(tmp_path / "keys.yaml")})
    write(tmp_path / "keys.yaml", {"keys": [{"name": "t", "key": "sk-1"}]})
    gateway = await live(values)

    async def revoked():
        headers = {"authorization": "Bearer sk-1"}
        return (await gateway.client.post(CHAT, json=chat(), headers=headers)).status_code == 401

    async def slow(*args, **kwargs):  # as it is where tokenizers have to be loaded
        write(tmp_path / "keys.yaml", {"keys": []})
        await until(revoked, "the empty key file")
        return await build_models(*args, **kwargs)

    assert not await revoked()
    with mock.patch("gateway.wiring.build_models", slow):
        await gateway.reload()
    await until(revoked, "the empty key file, again")


async def test_a_changed_file_is_noticed_also_behind_a_link_that_is_swapped(
    replicas, live, tmp_path
):
    (replica,) = await replicas(answers)
    values = sections(replica)
    gateway = await live(values, watched=True)
    limit = iter(range(10, 20))

    def next_values():
        return {**values, "limits": {"max_in_flight": next(limit)}}

    async def applied(num):
        await until(lambda: len(gateway.told("config_applied")) == num, f"{num} reloads")

    gateway.write(next_values())
    await applied(1)
    for name in ("..1", "..2"):  # as a ConfigMap is mounted
        (tmp_path / name).mkdir()
        (tmp_path / name / "c").write_text(json.dumps(next_values()))
    (tmp_path / "..data").symlink_to("..1")
    gateway.path.unlink()
    gateway.path.symlink_to("..data/c")
    await applied(2)
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    await applied(3)
    gateway.path.unlink()
    await until(lambda: gateway.told("config_refused"), "the missing file")
    assert await gateway.gateway.metric("warmroute_config_valid") == 0
    assert {line["trigger"] for line in gateway.told("config_applied")} == {"file"}
    assert len(gateway.told("config_refused")) == 1, "once, and not at every look"


async def test_many_reloads_at_once_come_one_after_the_other(replicas, live):
    (replica,) = await replicas(answers)
    values = sections(replica)
    gateway = await live(values)
    gateway.write({**values, "limits": {"max_in_flight": 5}})
    answers_got = await asyncio.gather(*(gateway.reload() for _ in range(10)))
    results = sorted(answer.json()["result"] for answer in answers_got)
    assert results == ["applied"] + ["unchanged"] * 9


async def test_without_a_file_there_is_nothing_to_reload(replicas, gateways):
    (replica,) = await replicas(answers)
    gateway = await gateways(replica)
    answer = await gateway.admin.post("/admin/reload")
    assert (answer.status_code, answer.json()["error"]["reason"]) == (409, "no_config_file")
    assert "--config" in answer.json()["error"]["message"]


async def test_sighup_reloads(replicas, tmp_path):
    (replica,) = await replicas(answers)
    values = sections(replica)
    async with gateway_process(tmp_path, values) as process:
        write(tmp_path / "gateway.json", {**values, "limits": {"max_in_flight": 3}})
        process.process.send_signal(signal.SIGHUP)

        def applied():
            return [line for line in process.lines() if line["event"] == "config_applied"]

        await until(applied, "the reload")
        assert applied()[0]["changes"] == ["limits.max_in_flight: 4096 -> 3"]


async def test_a_renewed_certificate_is_shown_to_new_connections(replicas, live, tmp_path):
    (replica,) = await replicas(answers)
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1", name="old")
    values = sections(replica, listen={**HERE, "tls": files})
    gateway = await live(values)
    url = gateway.gateway.gateway.url

    async def serial():
        _, writer = await asyncio.open_connection(
            "127.0.0.1", int(url.rpartition(":")[2]), ssl=authority.trust()
        )
        shown = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return shown

    before = await serial()
    renewed = authority.issue("127.0.0.1", name="new")
    for key, name in renewed.items():
        await asyncio.to_thread(Path(name).replace, files[key])
    assert (await gateway.reload()).status_code == 200
    assert await serial() != before
    async with httpx.AsyncClient(verify=authority.trust()) as client:
        assert (await client.get(f"{url}/livez")).status_code == 200


async def test_a_certificate_that_breaks_during_a_reload_changes_nothing(
    replicas, live, chat, tmp_path
):
    (replica,) = await replicas(answers)
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1", name="old")
    values = sections(replica, listen={**HERE, "tls": files})
    gateway = await live(values)

    def breaks(*args, **kwargs):
        Path(files["cert_file"]).rename(tmp_path / "kept")
        return build_models(*args, **kwargs)

    limited = {**values, "limits": {"max_body_bytes": 1}}
    with mock.patch("gateway.wiring.build_models", breaks):
        refused = await gateway.reload(limited)
    assert (refused.status_code, refused.json()["error"]["reason"]) == (400, "config_invalid")
    assert files["cert_file"] in str(refused.json()["error"]["problems"])
    await asyncio.to_thread((tmp_path / "kept").rename, files["cert_file"])
    url = gateway.gateway.gateway.url
    async with httpx.AsyncClient(verify=authority.trust()) as client:
        assert (await client.post(f"{url}{CHAT}", json=chat())).status_code == 200
        assert (await gateway.reload(limited)).json()["result"] == "applied"
        assert (await client.post(f"{url}{CHAT}", json=chat())).status_code == 413


async def test_a_stop_tells_the_time_to_drain_that_is_in_force(replicas, live):
    (replica,) = await replicas(answers)
    gateway = await live(sections(replica, timeouts={"drain_s": 20}))
    await gateway.reload(sections(replica, timeouts={"drain_s": 7}))
    gateway.gateway.gateway.stop()
    await gateway.gateway.task
    assert [line["drain_s"] for line in gateway.told("stopping")] == [7]


async def test_the_command_prints_what_changed_or_what_is_wrong(replicas, live, capsys):
    (replica,) = await replicas(answers)
    values = sections(replica)
    gateway = await live(values)

    async def command():
        arguments = ["reload", "--admin", gateway.gateway.gateway.admin_url]
        return await asyncio.to_thread(main, arguments), *capsys.readouterr()

    gateway.write({**values, "limits": {"max_in_flight": 6}})
    assert await command() == (0, "applied\nlimits.max_in_flight: 4096 -> 6\n", "")
    gateway.write("models: 3\n")
    code, out, err = await command()
    assert (code, out) == (1, "")
    assert err.splitlines()[1].startswith(f"warmroute: {gateway.path}:1: models: ")


async def test_a_replica_that_left_is_counted_on_for_some_scrapes_and_then_forgotten(
    replicas, live, chat
):
    usage = b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}'

    async def tells(conversation):
        await conversation.answer(usage)

    leaving, staying = await replicas(tells, tells)
    gateway = await live(sections(leaving, staying))
    for number in range(20):
        await gateway.client.post(CHAT, json=chat(f"{number}"))

    async def shown(replica):
        page = (await gateway.admin.get("/metrics")).text
        return {line.split("{")[0] for line in page.splitlines() if f'"{replica.name}"' in line}

    counted = {"warmroute_prompt_tokens_total", "warmroute_replica_changes_total"}
    gauges = {"warmroute_replica_state", "warmroute_replica_weight"}
    assert await shown(leaving) >= counted | gauges
    await gateway.reload(sections(staying))
    assert await shown(leaving) & (counted | gauges) == counted
    await gateway.reload(sections(leaving, staying))
    await until(lambda: all_ready(gateway.gateway))
    assert await shown(leaving) >= counted | gauges, "it is counted on"
    with mock.patch("gateway.fleet.COUNTERS_KEPT_S", SOON_S):
        await gateway.reload(sections(staying))

    async def forgotten():
        return not await shown(leaving)

    await until(forgotten, "the end of its counters")
    assert await shown(staying) >= counted | gauges
    await gateway.reload(sections(leaving, staying))
    await until(lambda: all_ready(gateway.gateway))
    for number in range(20):
        await gateway.client.post(CHAT, json=chat(f"{number}"))
    assert await shown(leaving) >= counted | gauges, "it is counted anew"


async def test_however_many_replicas_leave_at_once_all_are_forgotten(replicas, live):
    (staying,) = await replicas(answers)
    values = sections(staying)
    nobody = [{"id": f"gone-{port}", "url": f"http://127.0.0.1:{port}"} for port in range(1, 151)]
    gateway = await live(values)
    listed = {**values["models"][0], "replicas": [*values["models"][0]["replicas"], *nobody]}
    await gateway.reload({**values, "models": [listed]})
    with mock.patch("gateway.fleet.COUNTERS_KEPT_S", SOON_S):
        await gateway.reload(values)

    async def forgotten():
        return "gone-" not in (await gateway.admin.get("/metrics")).text

    await until(forgotten, "the end of their counters")
