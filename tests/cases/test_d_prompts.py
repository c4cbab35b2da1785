"""Area D: what prompts are to the index, and what they and their sessions do to placement."""

import asyncio
import itertools
import threading
import time
from collections import Counter
from math import ceil

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from gateway.api.endpoints import ENDPOINTS
from gateway.config.models import GatewayConfig
from gateway.prompt.body import BodyKind
from gateway.prompt.tokenizer import PromptTokenizer
from tests.support.api_replicas import DONE, chat_event
from tests.support.engines import Engine
from tests.support.event_fleets import candidates, follows, heard, metric
from tests.support.publishers import Publisher, stored
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BLOCK = 16
DEMO = "loadtests/demo_model"
QWEN = "tests/data/tokenizers/qwen3"
SMOL = "tests/data/tokenizers/smollm2"
HASHES = itertools.count(1)  # of engines' blocks: all different


def user(text):
    return [{"role": "user", "content": text}]


def words(count, first=0):
    return " ".join(f"fact {number}," for number in range(first, first + count))


def full_blocks(ids):
    """Blocks that a cache can serve: never the last token."""
    return (len(ids) - 1) // BLOCK


async def say(gateway, path=CHAT, model="m", **fields):
    """Send a request, and return the replica and the tokens that it matched there."""
    answer = await gateway.client.post(path, json={"model": model, "max_tokens": 1, **fields})
    assert answer.status_code == 200, answer.text
    headers = answer.headers
    return headers["x-warmroute-replica"], int(headers["x-warmroute-matched-tokens"])


# D081, D083: the ids that are looked up are those that the engine caches


@pytest.fixture
def publishing(engines, publishers, gateways):
    """Start a gateway in step with engines, one for each entry: `await publishing((name, dir))`."""

    async def start(*models, per_model=1):
        names = [(name, tokenizer) for name, tokenizer in models for _ in range(per_model)]
        sources = await publishers(*(Publisher() for _ in names))
        replicas = await engines(
            *(
                Engine(models=[{"id": name}], block_size=BLOCK, sources={"0": publisher.source()})
                for (name, _), publisher in zip(names, sources, strict=True)
            )
        )
        sections = [
            {
                "name": name,
                "tokenizer": str(tokenizer),
                "replicas": [{"url": r.url} for r in replicas[i * per_model :][:per_model]],
            }
            for i, (name, tokenizer) in enumerate(models)
        ]
        config = GatewayConfig.model_validate({"models": sections})
        gateway = await gateways(config)
        for replica, publisher in zip(replicas, sources, strict=True):
            await until(lambda p=publisher: p.asked_from, "a subscriber")
            await heard(gateway, replica, publisher)
            await until(lambda r=replica: follows(gateway, r), "step")
        return gateway, list(zip(replicas, sources, strict=True))

    return start


async def caches(gateway, replica, publisher, ids):
    """Let an engine tell all full blocks of a prompt, and wait until they are in the index."""
    before = await metric(gateway, "kv_event_batches", replica)
    num_blocks = full_blocks(ids)
    hashes = itertools.islice(HASHES, num_blocks)
    await publisher.send(stored(list(hashes), ids[: num_blocks * BLOCK]))

    async def counted():
        return await metric(gateway, "kv_event_batches", replica) > before

    await until(counted, "the batch")


def had_cached(prompt_tokens, cached_tokens):
    """A script: an answer with this usage, written as vLLM writes it."""
    details = b'"prompt_tokens_details":{"cached_tokens":%d}' % cached_tokens
    usage = b'{"prompt_tokens":%d,"completion_tokens":1,%b}' % (prompt_tokens, details)

    async def script(conversation):
        await conversation.answer(b'{"choices":[],"usage":%b}' % usage)

    return script


@pytest.mark.parametrize("folder", [DEMO, QWEN, SMOL])
async def test_d081_a_chat_matches_the_blocks_of_its_templated_ids(publishing, folder):
    gateway, [(first, publisher), _] = await publishing(("m", folder), per_model=2)
    reference = AutoTokenizer.from_pretrained(folder)
    messages = user(words(30))
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = reference.encode(text, add_special_tokens=False)
    assert full_blocks(ids) >= 5
    assert ids[:BLOCK] != reference.encode(words(30))[:BLOCK], "the template has its part in it"
    await caches(gateway, first, publisher, ids)
    matched = full_blocks(ids) * BLOCK
    first.script = had_cached(len(ids), matched)
    for _ in range(3):
        assert await say(gateway, messages=messages) == (first.name, matched)

    async def counted():
        return await metric(gateway, "predicted_cached_tokens_total", first) == 3 * matched

    await until(counted, "the metric")


@pytest.fixture
def with_bos(tmp_path):
    """Return the demo model's tokenizer, with a first token that every text gets."""
    reference = AutoTokenizer.from_pretrained(DEMO)
    reference.save_pretrained(tmp_path)
    file = str(tmp_path / "tokenizer.json")
    changed = Tokenizer.from_file(file)
    bos = "<|endoftext|>"
    changed.post_processor = TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos} $B",
        special_tokens=[(bos, changed.token_to_id(bos))],
    )
    changed.save(file)
    return tmp_path, changed.token_to_id(bos)


async def test_d081_a_first_token_comes_once_in_a_completion_and_not_in_a_chat(
    publishing, with_bos
):
    folder, bos = with_bos
    gateway, [(first, publisher), _] = await publishing(("m", folder), per_model=2)
    reference = AutoTokenizer.from_pretrained(folder)
    plain = reference.encode(words(30), add_special_tokens=False)
    await caches(gateway, first, publisher, [bos, *plain])
    matched = full_blocks([bos, *plain]) * BLOCK
    assert await say(gateway, COMPLETIONS, prompt=words(30)) == (first.name, matched)
    other = {"prompt": words(30), "add_special_tokens": False}
    assert (await say(gateway, COMPLETIONS, **other))[1] == 0, "the engine adds none here"
    messages = user(words(30, 500))
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = reference.encode(text, add_special_tokens=False)
    await caches(gateway, first, publisher, ids)
    assert await say(gateway, messages=messages) == (first.name, full_blocks(ids) * BLOCK)


@pytest.mark.parametrize("at_once", [False, True])
async def test_d083_each_model_has_the_ids_of_its_own_tokenizer(publishing, at_once):
    """Models a and c share a tokenizer, which is loaded once as well."""
    folders = {"a": DEMO, "b": SMOL, "c": DEMO}
    gateway, pairs = await publishing(*folders.items())
    expected = {}
    for (replica, publisher), (name, folder) in zip(pairs, folders.items(), strict=True):
        ids = AutoTokenizer.from_pretrained(folder).encode(words(40), add_special_tokens=False)
        await caches(gateway, replica, publisher, ids)
        expected[name] = (replica.name, full_blocks(ids) * BLOCK)
    assert expected["a"][1] != expected["b"][1]
    requests = [say(gateway, COMPLETIONS, model=name, prompt=words(40)) for name in folders]
    if at_once:
        found = await asyncio.gather(*requests)
    else:
        found = [await request for request in requests]
    assert dict(zip(folders, found, strict=True)) == expected
    loaded = Counter(x["tokenizer"] for x in gateway.log if x["event"] == "tokenizer_loaded")
    assert loaded == {DEMO: 1, SMOL: 1}


# D095


async def test_d095_a_tokenizer_that_cannot_be_loaded_is_told_once_and_load_decides(
    engines, gateways, tmp_path, monkeypatch
):
    loads = Counter()
    load = PromptTokenizer.load

    def counting(source, *rest, **named):
        loads[source] += 1
        return load(source, *rest, **named)

    monkeypatch.setattr(PromptTokenizer, "load", counting)
    arrived, release = [], asyncio.Event()

    async def waits(conversation):
        arrived.append(conversation)
        await release.wait()
        await conversation.answer(b'{"id":"x"}')

    folders = {name: tmp_path / name for name in ("a", "b")}
    sections = []
    for name, folder in folders.items():
        folder.mkdir()
        own = await engines(*(Engine(models=[{"id": name}], script=waits) for _ in range(2)))
        replicas = [{"url": replica.url} for replica in own]
        sections.append({"name": name, "tokenizer": str(folder), "replicas": replicas})
    gateway = await gateways(GatewayConfig.model_validate({"models": sections}))
    at_start = events(gateway)
    requests = [
        asyncio.create_task(say(gateway, model=name, messages=user(words(50, number))))
        for name in folders
        for number in range(60)
    ]
    await until(lambda: len(arrived) == 120, "all requests")
    release.set()
    placed = Counter([replica for replica, _ in await asyncio.gather(*requests)])
    assert len(placed) == 4
    assert all(count <= max(ceil(1.5 * 30), 30 + 4) for count in placed.values()), placed
    for name, folder in folders.items():
        assert await gateway.metric(f'warmroute_tokenizer_loaded{{model="{name}"}}') == 0
        told = [line for line in gateway.log if line.get("tokenizer") == str(folder)]
        assert [line["event"] for line in told] == ["tokenizer_unavailable"]
        assert "tokenizer.json" in told[0]["problem"], "it says what to do"
    assert loads == {str(folder): 1 for folder in folders.values()}
    await until(lambda: len(gateway.requests()) == 120, "their lines in the log")
    assert events(gateway) == at_start | {"request": 120}, "and no other line for any of them"


def events(gateway):
    return dict(Counter(line["event"] for line in gateway.log))


# D097

NUM_LONG = 4
LONG_TOKENS = 32_000
TOKEN_GAP_S = 0.01
MAX_DELAY_S = 0.1


def p99(values):
    return sorted(values)[len(values) * 99 // 100]


async def lags(found, over):
    """Note by how much the loop is late, every 2 ms."""
    while not over.is_set():
        began = time.monotonic()
        await asyncio.sleep(0.002)  # what is measured
        found.append(time.monotonic() - began - 0.002)


async def trickles(conversation):
    """Answer short chats by a stream of 30 tokens, and long ones at once."""
    if len(conversation.request.body) > 10_000:
        await conversation.answer(b'{"id":"x"}')
        return
    await conversation.start_stream()
    for _ in range(30):
        await conversation.chunk(chat_event({"content": "a"}))
        await asyncio.sleep(TOKEN_GAP_S)  # the replica's time for a token
    await conversation.chunk(DONE)
    await conversation.end()


async def gaps(gateway, found):
    body = {"model": "m", "messages": user("hi"), "stream": True}
    async with gateway.client.stream("POST", CHAT, json=body) as answer:
        last = None
        async for _ in answer.aiter_raw():
            now = time.monotonic()
            if last is not None:
                found.append(now - last)
            last = now


async def health(gateway, found, over):
    while not over.is_set():
        began = time.monotonic()
        assert (await gateway.client.get("/health")).status_code == 200
        found.append(time.monotonic() - began)
        await asyncio.sleep(0.1)  # 10 Hz


@pytest.mark.alone  # measures time
async def test_d097_long_prompts_hold_up_neither_the_loop_nor_streams(
    engines, gateways, monkeypatch
):
    """Scaled down: 4 prompts of 32k tokens, by the slowest way there is; 20 streams at once."""

    def missing(_):
        raise ImportError("not here")

    monkeypatch.setattr("gateway.prompt.proof.FastTokenizer", missing)
    threads = set()
    finish = PromptTokenizer.finish

    def noting(self, begun, *rest):
        if begun.rendered.text is not None and len(begun.rendered.text) > 10_000:
            threads.add(threading.current_thread())
        return finish(self, begun, *rest)

    monkeypatch.setattr(PromptTokenizer, "finish", noting)
    served = [{"id": "m", "max_model_len": 10 * LONG_TOKENS}]
    fleet = await engines(
        *(
            Engine(models=served, script=trickles, block_size=BLOCK, num_blocks=100_000)
            for _ in range(2)
        )
    )
    model = {"name": "m", "tokenizer": QWEN, "replicas": [{"url": r.url} for r in fleet]}
    gateway = await gateways(
        GatewayConfig.model_validate({"models": [model]}),
        prepare={"timeout_s": 30.0},
    )
    reference = AutoTokenizer.from_pretrained(QWEN)
    texts = [words(LONG_TOKENS // 6, number * 10_000) for number in range(NUM_LONG)]
    ids = [reference.encode(text, add_special_tokens=False) for text in texts]
    assert all(len(each) > LONG_TOKENS for each in ids)
    await say(gateway, COMPLETIONS, prompt=words(3000))  # code and connections that are new
    late, between, probed, over = [], [], [], asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(lags(late, over))
        group.create_task(health(gateway, probed, over))
        async with asyncio.TaskGroup() as traffic:
            for _ in range(20):
                traffic.create_task(gaps(gateway, between))
            for text in texts:
                traffic.create_task(say(gateway, COMPLETIONS, prompt=text))
        over.set()
    assert p99(late) < MAX_DELAY_S
    assert p99(between) < MAX_DELAY_S
    assert p99(probed) < MAX_DELAY_S
    assert threads
    assert threading.current_thread() not in threads
    for each in ids:
        known = await candidates(gateway, each)
        assert max(match["L0"] for match in known.values()) >= full_blocks(each) * BLOCK


# D165


class Held:
    """A script that answers when it is told to."""

    def __init__(self):
        self.arrived = []
        self.release = asyncio.Event()

    async def __call__(self, conversation):
        self.arrived.append(conversation)
        await self.release.wait()
        await conversation.answer(b'{"choices":[{"text":"a"}]}')

    async def holds(self, count):
        await until(lambda: len(self.arrived) == count, f"{count} requests")


def bounded(load_bound):
    """The policy that goes by the prefix alone, with nothing that is always allowed."""
    return {"default": {"kind": "prefix_affinity", "load_bound": load_bound, "slack": 0}}


async def explained(gateway, ids):
    body = {"model": "m", "prompt": ids}
    return (await gateway.admin.post(f"/admin/explain?path={COMPLETIONS}", json=body)).json()


async def test_d165_with_many_replicas_and_little_traffic_the_bound_is_one(engines, gateways):
    held = Held()
    fleet = await engines(*(Engine(script=held, block_size=4) for _ in range(300)))
    gateway = await gateways(*fleet, policies=bounded(1.25), health={"interval_s": 5.0})
    shared = list(range(40))
    held.release.set()
    warm, _ = await say(gateway, COMPLETIONS, prompt=shared)
    held.release.clear()
    async with asyncio.TaskGroup() as group:
        requests = [
            group.create_task(
                say(
                    gateway,
                    COMPLETIONS,
                    prompt=[*(shared if n % 4 == 0 else range(1000 * n, 1000 * n + 40)), n],
                )
            )
            for n in range(30)
        ]
        await held.holds(31)
        told = await explained(gateway, [*shared, 99])
        assert (told["load_cap"], told["reason"]) == (1, "spill")
        chosen = next(c for c in told["candidates"] if c["replica"] == told["replica"])
        assert chosen["in_flight"] == 0, "those that are idle come next, not the affinity's one"
        held.release.set()
    placed = Counter(task.result()[0] for task in requests)
    assert warm in placed
    assert max(placed.values()) == 1, "max(1, ceil(1.25 x 30/300))"


async def test_d165_one_replica_takes_all(engines, gateways):
    held = Held()
    gateway = await gateways(
        *await engines(Engine(script=held, block_size=4)), policies=bounded(1.0)
    )
    async with asyncio.TaskGroup() as group:
        for n in range(20):
            group.create_task(say(gateway, COMPLETIONS, prompt=[n, *range(20)]))
        await held.holds(20)
        held.release.set()


@pytest.mark.parametrize(("load_bound", "cap", "reason"), [(1.25, 2, "best"), (1.0, 1, "spill")])
async def test_d165_of_two_replicas_the_busy_one_has_the_prefix(
    engines, gateways, load_bound, cap, reason
):
    """Bound: ceil(1.25 x 2/2) = 2, so it takes another one; ceil(1.0 x 2/2) = 1, so it is full."""
    held = Held()
    fleet = await engines(*(Engine(script=held, block_size=4) for _ in range(2)))
    gateway = await gateways(*fleet, policies=bounded(load_bound))
    ids = list(range(41))
    held.release.set()
    warm, _ = await say(gateway, COMPLETIONS, prompt=ids)
    held.release.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(say(gateway, COMPLETIONS, prompt=ids))
        await held.holds(2)
        told = await explained(gateway, ids)
        busy = next(c for c in told["candidates"] if c["replica"] == warm)
        assert (busy["in_flight"], busy["matched_tokens"]["L0"]) == (1, 40)
        assert (told["load_cap"], told["reason"]) == (cap, reason)
        assert (told["replica"] == warm) is (reason == "best")
        held.release.set()


# D167

TURNS = 10
SESSIONS = {"default": {"kind": "session"}}


def body_of(kind, number, *, stream):
    """A body for an endpoint; the turns of a session have nothing in common but the session."""
    text = f"{number} {words(20, number)}"
    if kind is BodyKind.FORM:
        files = {"file": ("a.wav", text.encode(), "audio/wav")}
        return {"data": {"model": "m", "stream": str(stream).lower()}, "files": files}
    field = {
        BodyKind.COMPLETION: {"prompt": text},
        BodyKind.RESPONSES: {"input": text},
        BodyKind.OTHER: {"input": text},
    }.get(kind, {"messages": user(text)})
    return {"json": {"model": "m", "max_tokens": 1, "stream": stream, **field}}


@pytest.mark.parametrize("header", ["X-Session-ID", "x-session-id"])
async def test_d167_a_session_stays_with_its_replica_on_every_path(engines, gateways, header):
    async def answers(conversation):
        if b'"stream":true' in conversation.request.body.replace(b" ", b""):
            await conversation.start_stream()
            await conversation.chunk(DONE)
            await conversation.end()
        else:
            await conversation.answer(b'{"id":"x"}')

    fleet = await engines(*(Engine(script=answers) for _ in range(4)))
    gateway = await gateways(*fleet, policies=SESSIONS)
    client, turn = gateway.client, 0
    placed = Counter()
    for path, endpoint in ENDPOINTS.items():
        for stream in (False, True):
            for _ in range(TURNS):
                turn += 1
                given = body_of(endpoint.kind, turn, stream=stream)
                answer = await client.post(path, headers={header: "s1"}, **given)
                assert answer.status_code == 200, (path, answer.text)
                placed[answer.headers["x-warmroute-replica"]] += 1
    assert list(placed.values()) == [len(ENDPOINTS) * 2 * TURNS]
    others = set()
    for number in range(40):
        given = body_of(BodyKind.CHAT, 0, stream=False)
        answer = await client.post(CHAT, headers={header: f"other-{number}"}, **given)
        others.add(answer.headers["x-warmroute-replica"])
    assert others == {replica.name for replica in fleet}, "other sessions have other replicas"


async def test_d167_a_session_moves_only_when_its_replica_is_over_the_bound(engines, gateways):
    held = Held()
    fleet = await engines(*(Engine(script=held) for _ in range(4)))
    policy = {"default": {"kind": "session", "load_bound": 1.0, "slack": 0}}
    gateway = await gateways(*fleet, policies=policy)

    async def turn(number):
        given = body_of(BodyKind.CHAT, number, stream=False)
        answer = await gateway.client.post(CHAT, headers={"x-session-id": "s1"}, **given)
        return answer.headers["x-warmroute-replica"]

    async with asyncio.TaskGroup() as group:
        first = group.create_task(turn(1))
        await held.holds(1)
        second = group.create_task(turn(2))
        await held.holds(2)
        held.release.set()
    assert first.result() != second.result()
    assert {await turn(number) for number in range(3, 6)} == {first.result()}
