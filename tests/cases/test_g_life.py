"""Area G: the gateway's own life: it starts without a fleet, and stops without breaking a thing."""

import asyncio
import contextlib
import json
import signal
import socket
import threading
import time

import httpx
import pytest

from gateway import wiring
from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig
from gateway.prompt.tokenizer import PromptTokenizer, TokenizerUnavailable
from tests.support.clients import post
from tests.support.gateways import quick, running
from tests.support.listed import file_config, write_list
from tests.support.replicas import WAIT_S, ScriptedReplica, until

CHAT = "/v1/chat/completions"
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
BODY = '{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = '{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def get(path):
    return f"GET {path} HTTP/1.1\r\nhost: gw\r\n\r\n".encode()


class Held:
    """A script that begins to answer and goes on only when told: streams, and waiting answers."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.num_begun = 0
        self.num_left = 0

    async def __call__(self, conversation):
        if b"quick" in conversation.request.body:
            await conversation.answer(b"{}")
            return
        streaming = b'"stream":true' in conversation.request.body
        if streaming:
            await conversation.start_stream()
            await conversation.chunk(EVENT)
        self.num_begun += 1
        going_on = asyncio.create_task(self.go_on.wait())
        leaving = asyncio.create_task(conversation.client_left())
        done, _ = await asyncio.wait({going_on, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if leaving in done:
            going_on.cancel()
            self.num_left += 1
            raise ConnectionResetError
        leaving.cancel()
        await asyncio.wait({leaving})
        if streaming:
            await conversation.chunk(DONE)
            await conversation.end()
        else:
            await conversation.answer(b'{"whole":true}')


async def held_gateway(replicas, processes, **timeouts):
    script = Held()
    [replica] = await replicas(script)
    models = [{"name": "m", "replicas": [{"url": replica.url}]}]
    return script, await processes({"models": models, "timeouts": timeouts})


async def exit_code(gateway, within_s=10.0):
    async with asyncio.timeout(within_s):
        return await asyncio.to_thread(gateway.process.wait)


async def ask(raw, gateway, data):
    client = await raw(gateway)
    await client.send(data)
    return await client.answer()


async def draining(gateway):
    await until(lambda: any(line["event"] == "stopping" for line in gateway.lines()), "drain")


QUICK = BODY.replace("hi", "quick")


@pytest.mark.alone  # measures time
async def test_g137_a_drain_serves_what_runs_and_what_still_comes(replicas, processes, raw):
    """After SIGTERM /readyz is 503 on both listeners, and clients are told to let go.

    New connections are answered as long as streams run; the process ends right after the last
    stream, with code 0. Scaled: streams of a second or two instead of 40 s.
    """
    script, gateway = await held_gateway(replicas, processes)
    streams = [await raw(gateway) for _ in range(3)]
    waiting, idle = await raw(gateway), await raw(gateway)
    for client in streams:
        await client.send(post(CHAT, STREAM))
    await waiting.send(post(CHAT, BODY))
    await idle.send(post(CHAT, QUICK))
    assert (await idle.answer()).header(b"connection") is None, "kept"
    await until(lambda: script.num_begun == 4)
    gateway.process.send_signal(signal.SIGTERM)
    await draining(gateway)
    async with asyncio.timeout(1.0):
        assert await idle.rest() == b"", "an idle connection is closed at once"
    for path, status in (("/livez", 200), ("/readyz", 503)):
        answer = await ask(raw, gateway, get(path))
        assert (answer.status, answer.header(b"connection")) == (status, b"close")
        async with httpx.AsyncClient(base_url=gateway.admin_url) as admin:
            assert (await admin.get(path)).status_code == status
    late = await ask(raw, gateway, post(CHAT, QUICK))
    assert (late.status, late.header(b"connection")) == (200, b"close")
    assert gateway.process.poll() is None
    script.go_on.set()
    for client in streams:
        answer = await client.answer()
        assert (answer.whole, answer.body) == (True, EVENT + DONE)
        assert await client.rest() == b""
    last = await waiting.answer()
    assert (last.json(), last.header(b"connection")) == ({"whole": True}, b"close")
    assert await exit_code(gateway, within_s=2.0) == 0


@pytest.mark.alone  # measures time
async def test_g137_an_idle_gateway_exits_in_under_3_s(replicas, processes, raw):
    """Neither kept connections nor fresh ones that never spoke hold up the exit, with code 0."""
    _, gateway = await held_gateway(replicas, processes)
    kept, fresh = await raw(gateway), await raw(gateway)
    await kept.send(post(CHAT, QUICK))
    assert (await kept.answer()).status == 200
    started = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    assert await exit_code(gateway) == 0
    assert time.monotonic() - started < 3.0
    assert await kept.rest() == await fresh.rest() == b""


@pytest.mark.alone  # measures time
@pytest.mark.parametrize("hurried", [False, True], ids=["limit", "second-signal"])
async def test_g137_at_the_limit_streams_end_with_an_error_and_replicas_are_let_go(
    replicas, processes, raw, hurried
):
    """Past timeouts.drain_s, or on a second signal, streams get an error event and no [DONE].

    A request without an answer gets 503, the replica's connections close, and the code is 0.
    Scaled: a limit of 0.5 s instead of 60 s.
    """
    drain_s = 60.0 if hurried else 0.5
    script, gateway = await held_gateway(replicas, processes, drain_s=drain_s)
    stream, waiting, arriving = [await raw(gateway) for _ in range(3)]
    await stream.send(post(CHAT, STREAM))
    await waiting.send(post(CHAT, BODY))
    await arriving.send(post(CHAT, BODY)[:-5])
    await until(lambda: script.num_begun == 2)
    started = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    if hurried:
        await draining(gateway)
        gateway.process.send_signal(signal.SIGINT)
    answer = await stream.answer()
    assert answer.whole
    events = answer.body.split(b"\n\n")
    assert events[0] + b"\n\n" == EVENT
    error = json.loads(events[-2].strip().removeprefix(b"data: "))["error"]
    assert (error["code"], error["reason"]) == (503, "draining")
    assert b"[DONE]" not in answer.body
    for client in (waiting, arriving):
        refused = await client.answer()
        assert (refused.status, refused.json()["error"]["reason"]) == (503, "draining")
        assert refused.header(b"retry-after") == b"1"
        assert refused.header(b"connection") == b"close"
    await until(lambda: script.num_left == 2, "the replica's connections to close", within_s=2.0)
    assert await exit_code(gateway) == 0
    assert time.monotonic() - started < 3.0
    ended = {line["error"] for line in gateway.lines() if line["event"] == "request"}
    assert ended == {"draining"}


@pytest.mark.alone  # measures time
async def test_g137_a_client_that_does_not_read_cannot_hold_up_the_exit(replicas, processes, raw):
    """A stream whose client stopped reading is cut at the limit, a second later at most."""

    async def script(conversation):
        await conversation.start_stream()
        while True:
            await conversation.chunk(EVENT * 1000)

    [replica] = await replicas(script)
    models = [{"name": "m", "replicas": [{"url": replica.url}]}]
    gateway = await processes({"models": models, "timeouts": {"drain_s": 0.3}})
    client = await raw(gateway, receive_buffer=4096)
    await client.send(post(CHAT, STREAM))
    await client.head()
    started = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    assert await exit_code(gateway) == 0
    assert time.monotonic() - started < 4.0


@pytest.mark.alone  # measures time
async def test_g137_a_notice_serves_on_until_balancers_know(replicas, processes, raw):
    """With timeouts.drain_notice_s an idle gateway serves new and kept connections that long."""
    _, gateway = await held_gateway(replicas, processes, drain_notice_s=1.0)
    kept = await raw(gateway)
    await kept.send(post(CHAT, QUICK))
    assert (await kept.answer()).status == 200
    started = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    await draining(gateway)
    await kept.send(post(CHAT, QUICK))
    for answer in (await kept.answer(), await ask(raw, gateway, post(CHAT, QUICK))):
        assert (answer.status, answer.header(b"connection")) == (200, b"close")
    assert (await ask(raw, gateway, get("/readyz"))).status == 503
    assert await exit_code(gateway) == 0
    assert 1.0 <= time.monotonic() - started < 3.0


def config_of(urls, **changes):
    return quick(config_from_flags(urls), **changes)


async def answers(conversation):
    await conversation.answer(b"{}")


async def readiness(gateway):
    """Return the status of /readyz on both listeners, and the admin listener's word for it."""
    public = await gateway.client.get("/readyz")
    admin = await gateway.admin.get("/readyz")
    assert public.json().keys() == {"status"}
    return public.status_code, admin.status_code, admin.json().get("reason")


async def refused_at_once(gateway, chat):
    started = time.perf_counter()
    answer = await gateway.client.post(CHAT, json=chat())
    took_s = time.perf_counter() - started
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["reason"] == "no_eligible_replica"
    return took_s


async def serves(gateway, chat):
    return (await gateway.client.post(CHAT, json=chat())).status_code == 200


async def test_g139_without_replicas_requests_are_refused_at_once_and_readiness_says_so(
    replicas, gateways, chat, tmp_path
):
    """0 replicas at the start, then one, then it is ejected, then it returns: 503 or served.

    A 503 comes within 100 ms, /livez stays green, and /readyz follows. Scaled: an ejection of
    0.2 s instead of 1 s.
    """
    path = tmp_path / "replicas.json"
    write_list(path)
    quickly_back = {"base_s": 0.2, "max_s": 0.2}
    gateway = await gateways(file_config(path), wait_ready=False, ejection=quickly_back)
    await until(lambda: _says(gateway, (503, 503, "replicas")))
    assert min([await refused_at_once(gateway, chat) for _ in range(5)]) < 0.1
    assert (await gateway.client.get("/livez")).status_code == 200
    [replica] = await replicas(answers)
    write_list(path, replica)
    await until(lambda: _says(gateway, (200, 200, None)))
    assert await serves(gateway, chat)
    await replica.stop()
    assert (await gateway.client.post(CHAT, json=chat())).status_code == 503
    assert await gateway.states() == ["ejected"]
    assert await readiness(gateway) == (503, 503, "replicas")
    assert min([await refused_at_once(gateway, chat) for _ in range(5)]) < 0.1
    await replica.start(replica.port)
    await until(lambda: serves(gateway, chat), "traffic on the one that returned", within_s=5.0)
    assert await readiness(gateway) == (200, 200, None)


async def _says(gateway, expected):
    return await readiness(gateway) == expected


async def test_g139_a_model_that_is_down_does_not_take_the_others_along(replicas, gateways, chat):
    """Two models, one without a replica: ready, the one served, the other refused with 503."""
    [up] = await replicas(answers, model="up")
    models = [
        {"name": "up", "replicas": [{"url": up.url}]},
        {"name": "down", "replicas": [{"url": "http://127.0.0.1:1"}]},
    ]
    config = GatewayConfig.model_validate({"models": models})
    gateway = await gateways(config, wait_ready=False)
    await until(lambda: _says(gateway, (200, 200, None)))
    for model, status in (("up", 200), ("down", 503)):
        body = {**chat(), "model": model}
        assert (await gateway.client.post(CHAT, json=body)).status_code == status


@pytest.mark.parametrize(("wanted", "expected"), [(0, 200), (1, 503)])
async def test_g139_ready_without_replicas_is_a_choice(gateways, tmp_path, wanted, expected):
    """health.ready_replicas: 0 is ready with none; by default one is needed."""
    path = tmp_path / "replicas.json"
    write_list(path)
    gateway = await gateways(file_config(path), wait_ready=False, health={"ready_replicas": wanted})
    reason = None if expected == 200 else "replicas"
    await until(lambda: _says(gateway, (expected, expected, reason)))


class SlowTokenizer:
    """Stands in for loading a tokenizer, which takes as long as a test wants."""

    def __init__(self, monkeypatch):
        self.may_load = threading.Event()
        monkeypatch.setattr(PromptTokenizer, "load", self._load)

    def _load(self, *_, **__):
        self.may_load.wait(WAIT_S)
        raise TokenizerUnavailable("none in this test")


async def test_g140_nothing_is_ready_before_the_tokenizers_are(
    replicas, tmp_path, monkeypatch, chat
):
    """While a tokenizer loads both listeners answer: alive, not ready, and 503 for requests.

    Kept connections of that time are served afterwards. Three replicas are there at once; the
    whole is repeated 20 times, with a load that ends when the test says so instead of after 5 s.
    """
    fleet = await replicas(answers, answers, answers)
    urls = [replica.url for replica in fleet]
    for _ in range(20):
        slow = SlowTokenizer(monkeypatch)
        config = quick(config_from_flags(urls, str(tmp_path)))
        async with running(config, wait_started=False) as gateway:
            for client in (gateway.client, gateway.admin):
                assert (await client.get("/livez")).status_code == 200
                answer = await client.get("/readyz")
                assert (answer.status_code, answer.json()["reason"]) == (503, "starting")
            early = await gateway.client.post(CHAT, json=chat())
            assert (early.status_code, early.headers["retry-after"]) == (503, "1")
            assert early.json()["error"]["reason"] == "starting"
            slow.may_load.set()
            await until(lambda: _says_ready(gateway.client))
            assert await serves(gateway, chat)
    assert not [line for line in gateway.log if line["event"] == "internal_error"]


async def _says_ready(client):
    return (await client.get("/readyz")).status_code == 200


async def test_g140_a_gateway_that_starts_can_be_stopped(replicas, tmp_path, monkeypatch):
    """A stop while a tokenizer loads is heard: listeners close, nothing waits for the load."""
    [replica] = await replicas(answers)
    slow = SlowTokenizer(monkeypatch)
    config = quick(config_from_flags([replica.url], str(tmp_path)))
    async with running(config, wait_started=False) as gateway:
        gateway.gateway.stop()
        async with asyncio.timeout(3.0):
            await gateway.task
    slow.may_load.set()
    assert replica.probes == []


async def test_g140_readiness_waits_for_every_discovery_but_not_for_ever(
    replicas, gateways, tmp_path, monkeypatch
):
    """A listed replica is ready, a file is missing: not ready until it is there, or given up.

    Scaled: patience of 0.5 s instead of 10 s for the second gateway.
    """
    [replica] = await replicas(answers)
    path = tmp_path / "replicas.json"
    section = {"kind": "file", "path": str(path), "interval_s": 0.02}
    listed = {"name": "m", "replicas": [{"url": replica.url}], "discovery": [section]}
    config = GatewayConfig.model_validate({"models": [listed]})
    gateway = await gateways(config)
    assert await readiness(gateway) == (503, 503, "discovery")
    assert (await gateway.client.get("/livez")).status_code == 200
    write_list(path)
    await until(lambda: _says(gateway, (200, 200, None)))
    path.unlink()
    monkeypatch.setattr(wiring, "DISCOVERY_PATIENCE_S", 0.5)
    started = time.monotonic()
    impatient = await gateways(config)
    await until(lambda: _says(impatient, (200, 200, None)))
    assert time.monotonic() - started >= 0.5


@contextlib.contextmanager
def black_hole(port=0):
    """An address that swallows connections: a full backlog that nobody accepts from.

    Linux drops further SYNs to such a listener, so that connecting neither succeeds nor fails.
    """
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(0)
        address = listening.getsockname()
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filling.connect(address)
        yield address[1]


async def test_g164_a_dead_node_of_a_static_list_is_out_and_comes_back(replicas, gateways, chat):
    """Of three listed replicas one swallows packets: each request hit goes on to another.

    It is out within 10 s, and back within 10 s of its recovery. Scaled: a connect timeout of
    0.2 s instead of 2 s and 3 s of 20 requests a second instead of 2 minutes.
    """
    r0, r1 = await replicas(answers, answers)
    with black_hole() as port:
        urls = [r0.url, r1.url, f"http://127.0.0.1:{port}"]
        gateway = await gateways(config_of(urls), wait_ready=False, timeouts={"connect_s": 0.2})
        dead = f"127.0.0.1:{port}"
        await until(lambda: _ready_count(gateway, 2))
        # Nobody knows yet: it was well a moment ago.
        assert (await gateway.replica(dead))["state"] == "starting"
        took_s = [await timed(gateway, chat(f"q{number}")) for number in range(60)]
        assert max(took_s) < 1.0
        assert len(r0.received) + len(r1.received) == 60
    recovered = await ScriptedReplica(answers).start(port)
    await until(lambda: _ready_count(gateway, 3), "the recovered one", within_s=10.0)
    await until(lambda: _reaches(gateway, chat, recovered), within_s=10.0)
    await recovered.stop()


async def _ready_count(gateway, number):
    return (await gateway.states()).count("ready") == number


async def _reaches(gateway, chat, replica):
    await gateway.client.post(CHAT, json=chat(f"{time.monotonic()}"))
    return bool(replica.received)


async def timed(gateway, body):
    started = time.perf_counter()
    assert (await gateway.client.post(CHAT, json=body)).status_code == 200
    return time.perf_counter() - started


async def test_g164_a_node_that_dies_silently_costs_its_first_requests_a_connect_timeout(
    replicas, gateways, chat
):
    """A replica that was well swallows packets from now on: no request fails, it is out at once.

    Each request that is hit takes one connect timeout longer, and after the first nobody is sent
    there. Ten at once, as many as may be sent on before requests have earned more. Scaled: a
    connect timeout of 0.2 s.
    """
    fleet = await replicas(answers, answers)
    gateway = await gateways(
        config_of([replica.url for replica in fleet]),
        timeouts={"connect_s": 0.2},
        health={"interval_s": 30.0},  # no probe helps: requests find out
    )
    body = chat("the same beginning")
    name = (await gateway.client.post(CHAT, json=body)).headers["x-warmroute-replica"]
    dying = next(replica for replica in fleet if replica.name == name)
    await dying.stop()
    with black_hole(dying.port):
        took_s = await asyncio.gather(*(timed(gateway, body) for _ in range(10)))
        assert max(took_s) < 1.5
        assert (await gateway.replica(name))["state"] == "ejected"
        assert max([await timed(gateway, body) for _ in range(5)]) < 0.2
