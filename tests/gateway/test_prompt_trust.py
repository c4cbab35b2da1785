"""Token ids are compared with a replica's, and dropped while they differ."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace

import pytest

from gateway.config.engine import EngineConfig
from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.checking import Checker, Told
from gateway.prompt.prepare import Preparer
from gateway.prompt.questions import packed_answer
from gateway.prompt.rendering import Renderer
from gateway.prompt.tokenizer import PromptTokenizer
from gateway.prompt.trust import Trust, difference
from gateway.prompt.verified import CheckedPrompts, ToldPrompts
from gateway.proxy.transport import Origin
from gateway.replicas.tokens import NotTold, ReplicaTokens
from routing.hashing import pack_tokens

MODEL = "loadtests/demo_model"


@pytest.mark.parametrize(
    ("results", "is_given"),
    [
        ("equal", True),
        ("equal different_start", True),
        ("different_start equal different_tools", False),
        ("different_start different_start equal equal", False),
        ("different_start different_start equal equal equal", True),
        ("different_start different_start equal equal different_text equal", False),
        ("different_start skipped failed skipped", True),
        ("different_start " + "equal " * 20 + "different_start", True),
    ],
)
def test_trust(results, is_given):
    trust = Trust()
    for result in results.split():
        trust.note(result)
    assert trust.is_given is is_given


def test_trust_tells_when_it_changes():
    trust = Trust()
    told = [trust.note(result) for result in ["different_text"] * 3 + ["equal"] * 4]
    assert told == [False, True, False, False, False, True, False]


@pytest.mark.parametrize(
    ("here", "there", "has_tools", "is_dated", "reason"),
    [
        ([1, 2], [3, 2], False, False, "start"),
        ([1, 2], [1, 3], True, False, "tools"),
        ([1, 2], [1, 2, 3], False, False, "count"),
        ([1, 2], [1, 3], False, False, "text"),
        ([1, 2], [3, 2], True, True, "day"),
    ],
)
def test_reasons_of_a_difference(here, there, has_tools, is_dated, reason):
    assert difference(here, there, has_tools=has_tools, is_dated=is_dated) == reason


@pytest.mark.parametrize("answer", [b"{}", b"[]", b"5", b"{", b'{"tokens":["x"]}', b'{"tokens":5}'])
def test_answers_that_are_none(answer):
    with pytest.raises(ValueError):
        packed_answer(answer)


def test_ids_of_media_are_not_taken():
    with pytest.raises(ValueError, match="media"):
        packed_answer(b'{"token_ids":[1],"features":{"mm_hashes":{}}}')


class Reply:
    def __init__(self, status, body):
        self.status = status
        self._pieces = [body]

    @property
    def ended(self):
        return not self._pieces

    async def read(self):
        return self._pieces.pop() if self._pieces else b""

    def close(self):
        pass


class Replicas:
    """Stands in for a transport and one replica behind it."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def __call__(self):
        return [SimpleNamespace(origin=Origin("engine", 1), upstream_key="secret")]

    async def request(self, origin, request, deadlines):
        self.asked.append((request.target.decode(), json.loads(request.body)))
        await self.may_answer.wait()
        status, answer = self.answer(*self.asked[-1])
        return Reply(status, json.dumps(answer).encode())


@pytest.fixture(scope="module")
def tokenizer():
    return PromptTokenizer.load(MODEL)


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def chat(content="hello", **fields):
    fields = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    return RequestBody(BodyKind.CHAT, "m", fields, 100)


def tokens_of(replicas):
    return ReplicaTokens(replicas, replicas, Random(1))


def honest(tokenizer):
    def answer(path, asked):
        if path != "/tokenize":
            return 403, {}
        fields = {key: asked[key] for key in asked if key != "add_special_tokens"}
        return 200, {"tokens": tokenizer.token_ids(RequestBody(BodyKind.CHAT, "m", fields, 0))}

    return answer


def checker_of(tokenizer, replicas, executor, every=1):
    results, changes = [], []
    told = Told(results.append, lambda is_given, result: changes.append((is_given, result)))
    checker = Checker(lambda: "m", tokenizer, tokens_of(replicas), executor, every, told)
    return checker, results, changes


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ((200, {"tokens": [999, 2]}), "different_start"),
        ((400, {"error": {}}), "skipped"),
        ((500, {}), "failed"),
        ((200, {"nonsense": 1}), "failed"),
    ],
)
async def test_results_of_a_comparison(tokenizer, executor, answer, result):
    checker, _, _ = checker_of(tokenizer, Replicas(lambda *_: answer), executor)
    assert await checker.compare(chat()) == result


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"add_generation_prompt": False},
    ],
)
async def test_an_honest_replica_says_the_same(tokenizer, executor, fields):
    checker, _, _ = checker_of(tokenizer, Replicas(honest(tokenizer)), executor)
    assert await checker.compare(chat(**fields)) == "equal"


async def test_what_tokenize_cannot_tell_is_skipped(tokenizer, executor):
    replicas = Replicas(honest(tokenizer))
    checker, _, _ = checker_of(tokenizer, replicas, executor)
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    for body in (chat(truncate_prompt_tokens=3), chat(image), chat(None)):
        assert await checker.compare(body) == "skipped"
    assert replicas.asked == []


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - other tasks run meanwhile, and nobody tells
            await asyncio.sleep(0)


async def test_prompts_lose_and_regain_their_ids(tokenizer, executor):
    replicas = Replicas(lambda *_: (200, {"tokens": [999]}))
    checker, results, changes = checker_of(tokenizer, replicas, executor)
    prompts = CheckedPrompts(Preparer(tokenizer, executor, 5.0, 10**6, 10**7), checker)
    for number in (1, 2):
        assert (await prompts.prepare(chat())).problem is None
        await until(lambda number=number: len(results) == number)
    assert (changes, prompts.has_tokenizer) == ([(False, "different_start")], False)
    replicas.answer = honest(tokenizer)
    for number in (3, 4, 5):
        assert (await prompts.prepare(chat())).problem == "distrusted"
        await until(lambda number=number: len(results) == number)
    assert changes[1:] == [(True, "equal")]
    assert (await prompts.prepare(chat())).problem is None
    checker.close()


async def test_one_prompt_in_so_many_is_compared(tokenizer, executor):
    replicas = Replicas(honest(tokenizer))
    checker, results, _ = checker_of(tokenizer, replicas, executor, every=10)
    for _ in range(9):
        checker.offer(chat())
    assert replicas.asked == []
    checker.offer(chat())
    await until(lambda: results == ["equal"])
    off, _, _ = checker_of(tokenizer, replicas, executor, every=0)
    off.start()
    off.offer(chat())
    assert len(replicas.asked) == 1


async def test_some_chats_are_compared_at_the_start(tokenizer, executor):
    checker, results, _ = checker_of(tokenizer, Replicas(honest(tokenizer)), executor)
    checker.start()
    await until(lambda: results == ["equal"] * 3)


def told_by(replicas, executor, by_code="kimi"):
    inner = Preparer(None, executor, 5.0, 10**6, 10**7)
    renderer = Renderer(None, EngineConfig())
    return ToldPrompts(inner, tokens_of(replicas), renderer, 5.0, by_code)


async def test_an_engine_that_renders_whole_requests_is_asked_for_that(executor):
    replicas = Replicas(lambda *_: (200, {"token_ids": [5, 6, 7]}))
    prompts = told_by(replicas, executor)
    body = chat(temperature=1)
    prompt = await prompts.prepare(body)
    assert prompt.packed_tokens == pack_tokens([5, 6, 7])
    assert replicas.asked == [("/v1/chat/completions/render", dict(body.fields))]
    await prompts.prepare(body)
    assert len(replicas.asked) == 1  # kept


async def test_an_engine_that_does_not_is_asked_to_tokenize(executor):
    def answer(path, _):
        return (200, {"tokens": [8]}) if path == "/tokenize" else (403, {})

    replicas = Replicas(answer)
    prompts = told_by(replicas, executor)
    for content in ("a", "b"):
        assert (await prompts.prepare(chat(content))).packed_tokens == pack_tokens([8])
    paths = [path for path, _ in replicas.asked]
    assert paths == ["/v1/chat/completions/render", "/tokenize", "/tokenize"]


async def test_harmony_is_not_what_tokenize_says(executor):
    replicas = Replicas(
        lambda path, _: (200, {"tokens": [8]}) if path == "/tokenize" else (403, {})
    )
    prompt = await told_by(replicas, executor, "harmony").prepare(chat())
    assert (prompt.packed_tokens, prompt.problem) == (None, "unsupported")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((500, {}), "replica_refused"),
        ((200, {}), "replica_nonsense"),
    ],
)
async def test_without_an_answer_the_first_bytes_decide(executor, answer, problem):
    prompt = await told_by(Replicas(lambda *_: answer), executor).prepare(chat())
    assert (prompt.packed_tokens, prompt.problem) == (None, problem)
    assert prompt.head_key() is not None


async def test_equal_questions_are_asked_once_at_a_time(executor):
    replicas = Replicas(lambda *_: (200, {"token_ids": [5]}))
    replicas.may_answer.clear()
    prompts = told_by(replicas, executor)
    waiting = [asyncio.create_task(prompts.prepare(chat())) for _ in range(5)]
    await until(lambda: replicas.asked)
    replicas.may_answer.set()
    found = await asyncio.gather(*waiting)
    assert {prompt.packed_tokens for prompt in found} == {pack_tokens([5])}
    assert len(replicas.asked) == 1


async def test_a_late_answer_is_kept_for_the_next_turn(executor):
    replicas = Replicas(lambda *_: (200, {"token_ids": [5]}))
    replicas.may_answer.clear()
    tokens = tokens_of(replicas)
    question = SimpleNamespace(path="/tokenize", body=b"{}")
    with pytest.raises(NotTold) as caught:
        await tokens.ask(question, 0.2, keep=True)
    assert caught.value.reason == "replica_timeout"
    replicas.may_answer.set()
    assert await tokens.ask(question, 5.0, keep=True) == pack_tokens([5])
    assert len(replicas.asked) == 1


async def test_a_reload_while_a_replica_is_asked_costs_the_token_ids_and_not_the_request(executor):
    replicas = Replicas(lambda *_: (200, {"token_ids": [5]}))
    replicas.may_answer.clear()
    tokens = tokens_of(replicas)
    inner = Preparer(None, executor, 5.0, 10**6, 10**7)
    prompts = ToldPrompts(inner, tokens, Renderer(None, EngineConfig()), 5.0, "kimi")
    waiting = asyncio.create_task(prompts.prepare(chat()))
    await until(lambda: replicas.asked)
    tokens.close()
    prompt = await waiting
    assert (prompt.packed_tokens, prompt.problem) == (None, "replica_timeout")
