"""Area H, privacy: no prompt, key or internal text in metrics, logs and errors; bounded labels."""

import asyncio
import json

import httpx
import pytest

from gateway.config.load import config_from_flags
from gateway.index.memory import MemoryIndex
from gateway.placement import Placer
from gateway.prompt.tokenizer import PromptTokenizer
from gateway.proxy.usage import UsageReader
from tests.support.clients import RawClient, post
from tests.support.replicas import WAIT_S, until

CHAT = "/v1/chat/completions"
EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
SECRET_TEXT = "RuntimeCanary at 10.11.12.13:8000 in /srv/secret/module.py"
INTERNALS = ("Canary", "10.11.12.13", "/srv/", "Traceback", "Error(", "Exception", "errno", ".py")


async def answers(conversation):
    await conversation.answer(b'{"id":"x"}')


def chat(stream=False, text="hello"):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}


# H142

NUM_JUNK = 10_000
# One write of requests; small enough that neither side's buffers matter.
BATCH = 100


async def test_h142_junk_names_are_one_label(replicas, gateways):
    """10,000 unknown models, users, sessions: at most ten new series, all of them a client's."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)
    before = await _series(gateway)
    client = await RawClient.open(gateway.gateway.url)
    for start in range(0, NUM_JUNK, BATCH):
        numbers = range(start, start + BATCH)
        await client.send(b"".join(_junk(number) for number in numbers))
        for _ in numbers:
            assert (await client.answer()).status == 404
    client.leave()
    after = await _series(gateway)
    assert len(after) - len(before) <= 10, sorted(after - before)
    assert not [line for line in after if "junk" in line]
    labels = f'model="unknown",path="{CHAT}",status="404"'
    counted = await gateway.metric(f"warmroute_requests_total{{{labels}}}")
    assert counted == NUM_JUNK
    assert replica.received == []


def _junk(number):
    return post(
        CHAT,
        {**chat(), "model": f"junk-{number}"},
        f"x-user: junk-user-{number}",
        f"x-session-id: junk-session-{number}",
        f"x-request-id: junk-{number}",
    )


async def _series(gateway):
    """Return the samples' names and labels; histograms count once, not by bucket."""
    page = (await gateway.admin.get("/metrics")).text
    samples = {line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")}
    return {line for line in samples if "_bucket{" not in line and "_created" not in line}


async def test_h142_junk_paths_and_methods_are_bounded_too(replicas, gateways):
    """Paths, methods and stored responses that do not exist add nothing that grows."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica)

    async def junk(number):
        await gateway.client.get(f"/junk/{number}")
        await gateway.client.get(f"/v1/responses/junk_{number}")
        await gateway.client.request(f"JUNK{number}", CHAT)
        await gateway.client.post(CHAT, content=b"{", params={"junk": number})

    await junk(0)
    before = await _series(gateway)
    for number in range(1, 50):
        await junk(number)
    after = await _series(gateway)
    assert after == before
    assert not [line for line in after if "junk" in line.lower()]


# H145

CANARIES = {
    "authorization": "Bearer sk-CANARY-1",
    "api-key": "sk-CANARY-2",
    "x-api-key": "sk-CANARY-4",
    "cookie": "session=CANARY-5",
}
QUERY = "?api_key=sk-CANARY-3&prompt=CANARY-QUERY"
PRIVATE = {
    "model": "m",
    "messages": [{"role": "user", "content": "CANARY-PROMPT " * 20}],
    "cache_salt": "CANARY-SALT",
    "user": "CANARY-USER",
    "safety_identifier": "CANARY-SAFETY",
    "tools": [{"type": "function", "function": {"name": "CANARY-TOOL"}}],
}


@pytest.mark.parametrize("level", ["info", "debug"])
async def test_h145_no_secret_and_no_prompt_is_ever_written(replicas, processes, level):
    """Good and bad requests with canaries everywhere: none in the log, metrics, status, answers.

    The gateway is a process, so that standard output and error hold all that an operator's log
    would: start, requests, failures, stop.
    """
    plans = iter(["answer", "stream", "reset", "broken"])
    [replica] = await replicas(lambda conversation: _planned(conversation, next(plans, "answer")))
    config = {
        "models": [
            {
                "name": "m",
                "replicas": [{"url": replica.url}],
                "tokenizer": "loadtests/demo_model",
                "api_key": "${UPSTREAM}",
            }
        ],
        "auth": {"keys": [{"name": "team-a", "key": "sk-CANARY-1"}]},
        "logging": {"level": level},
    }
    gateway = await processes(config, {"UPSTREAM": "sk-CANARY-UPSTREAM"})
    replies = await _provoke(gateway.url)
    async with httpx.AsyncClient(base_url=gateway.admin_url, timeout=WAIT_S) as admin:
        pages = [(await admin.get(path)).text for path in ("/metrics", "/admin/status")]
        explained = await admin.post("/admin/explain", json=PRIVATE)
        pages.append(explained.text)
    await until(lambda: len(_requests(gateway.log)) >= 8, "the log of the requests")
    assert "sk-CANARY-UPSTREAM" in replica.received[0].head.decode()
    for name, text in {
        "log": gateway.log.read_text(),
        "pages": str(pages),
        "replies": replies,
    }.items():
        hits = [line for line in text.splitlines() if "CANARY" in line]
        assert hits == [], name


async def _planned(conversation, plan):
    match plan:
        case "answer":
            await conversation.answer(b'{"id":"x"}')
        case "stream":
            await conversation.start_stream()
            await conversation.chunk(EVENT)
            await conversation.end()
        case "reset":
            await conversation.start_stream()
            await conversation.chunk(EVENT)
            conversation.reset()
        case "broken":
            await conversation.send(b"CANARY no http\r\n\r\n")


async def _provoke(url):
    """Send requests of every fate and return what came back."""
    body = json.dumps(PRIVATE).encode()
    bad = {**CANARIES, "authorization": "Bearer sk-CANARY-BAD"}
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client:
        got = [await client.post(CHAT + QUERY, content=body, headers=CANARIES) for _ in range(5)]
        got += [
            await client.post(CHAT + QUERY, content=body, headers=bad),
            await client.post(CHAT + QUERY, content=body[:-3], headers=CANARIES),
            await client.post(CHAT, content=b'{"model":"m","messages":"CANARY"}', headers=CANARIES),
            await client.get("/CANARY-PATH" + QUERY, headers=CANARIES),
            await client.put(CHAT + QUERY, content=body, headers=CANARIES),
        ]
    return "\n".join(f"{answer.status_code} {answer.headers} {answer.text}" for answer in got)


def _requests(log):
    return [line for line in log.read_text().splitlines() if '"event": "request"' in line]


# H151


def _raise(*_args, **_kwargs):
    raise RuntimeError(SECRET_TEXT)


async def _raise_later(*_args, **_kwargs):
    _raise()


BUGS = {
    "tokenizer": (PromptTokenizer, "begin", _raise),
    "scorer": (Placer, "decide", _raise),
    "index": (MemoryIndex, "lookup", _raise_later),
    "mid_stream": (UsageReader, "feed", _raise),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("where", BUGS)
async def test_h151_a_bug_of_ours_is_a_generic_message(
    replicas, gateways, monkeypatch, where, stream
):
    """The client gets a message of ours and the request id; the log has the rest."""

    async def script(conversation):
        if not stream:
            await conversation.answer(EVENT)
            return
        await conversation.start_stream()
        await conversation.chunk(EVENT[:10])  # the bug comes between two pieces
        await conversation.chunk(EVENT[10:])
        await conversation.end()

    [replica] = await replicas(script)
    gateway = await gateways(config_from_flags([replica.url], "loadtests/demo_model"))
    owner, name, bug = BUGS[where]
    monkeypatch.setattr(owner, name, bug)
    client = await RawClient.open(gateway.gateway.url)
    await client.send(post(CHAT, chat(stream), "x-request-id: id-1", "connection: close"))
    answer = await client.answer()
    client.leave()
    told = (answer.head + answer.body).decode()
    assert not [word for word in INTERNALS if word in told], told
    assert answer.header(b"x-request-id") == b"id-1"
    if where in ("tokenizer", "index"):  # these fail open
        assert (answer.status, answer.whole, answer.body) == (200, True, EVENT)
    elif where == "scorer":
        assert answer.status == 500
        assert answer.json()["error"]["message"]
    elif stream:
        assert b'"error"' in answer.body
        assert b"[DONE]" not in answer.body
    else:
        # Told, cut, or not noticed by a client that had everything already.
        assert answer.status == 500 or not answer.whole or answer.body == EVENT
    [line] = await until(gateway.requests)
    assert line["request_id"] == "id-1"
    if where in ("scorer", "mid_stream"):
        assert "internal_error" in {x["event"] for x in gateway.log}
    assert await gateway.in_flight() == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_h151_an_unreachable_replica_is_told_without_its_address(replicas, gateways, stream):
    """Connect errors hold the address and the errno; the client learns neither."""
    [replica] = await replicas(answers)
    gateway = await gateways(replica, health={"interval_s": 30.0})
    await replica.stop()
    for _ in range(2):
        answer = await gateway.client.post(CHAT, json=chat(stream))
        assert answer.status_code == 503
        told = answer.text + str(answer.headers)
        assert not [word for word in (*INTERNALS, "127.0.0.1", str(replica.port)) if word in told]
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("how", ["silent", "garbage", "cut", "cut_later"])
async def test_h151_a_failing_replica_is_told_without_internals(replicas, gateways, how, stream):
    """Timeouts and broken streams, as an answer and as an event, are words of ours."""

    async def script(conversation):
        if how == "silent":
            await conversation.client_left()
        elif how == "garbage":
            await conversation.send(b"Canary /srv/ 10.11.12.13 no http\r\n\r\n")
        elif how == "cut_later":
            await conversation.start_stream()
            await conversation.chunk(EVENT)
        conversation.reset()

    [replica] = await replicas(script)
    gateway = await gateways(
        replica, timeouts={"first_byte_s": 0.1}, decision_headers=False, retries={"max_tries": 1}
    )
    answer = await gateway.client.post(CHAT, json=chat(stream))
    told = answer.text + str(answer.headers)
    assert not [word for word in (*INTERNALS, "127.0.0.1", str(replica.port)) if word in told]
    assert b'"error"' in answer.content
    assert answer.headers["x-request-id"]
    assert answer.status_code == {"silent": 504, "cut_later": 200}.get(how, 502)


async def test_h151_a_wrong_configuration_does_not_show_its_secrets(tmp_path):
    """What the operator reads about a wrong file names the key, not the secret in it."""
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "models:\n- name: m\n  api_key: 'sk-CANARY with spaces\n  replicas: [{url: 'ftp://x'}]\n"
        "auth: {keys: [{name: a, key: '${SECRET}', sha256: 'CANARY'}]}\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(".venv/bin/python", "-m", "gateway.cli", "check", str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"SECRET": "sk-CANARY-ENV", "PATH": ""},
    )
    output, _ = await asyncio.wait_for(process.communicate(), 2 * WAIT_S)
    assert process.returncode != 0
    assert b"sk-CANARY" not in output
    assert b"Traceback" not in output
