"""From a body to token ids: the rules that vLLM follows, and failing open."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers import AutoTokenizer

from gateway.prompt.body import BodyKind, read_body
from gateway.prompt.prepare import Preparer
from gateway.prompt.render import PromptProblem
from gateway.prompt.tokenizer import PromptTokenizer, TokenizerUnavailable
from routing.hashing import HashSpec

MODEL = "loadtests/demo_model"


@pytest.fixture(scope="module")
def tokenizer():
    return PromptTokenizer.load(MODEL)


def chat(*messages, **fields):
    body = {"model": "m", "messages": list(messages), **fields}
    return read_body(json.dumps(body).encode(), BodyKind.CHAT)


def completion(prompt, **fields):
    body = {"model": "m", "prompt": prompt, **fields}
    return read_body(json.dumps(body).encode(), BodyKind.COMPLETION)


def user(content):
    return {"role": "user", "content": content}


def test_a_chat_renders_and_tokenizes_as_the_reference_does(tokenizer):
    reference = AutoTokenizer.from_pretrained(MODEL)
    messages = [{"role": "system", "content": "be brief"}, user("what is a KV cache? é 😀")]
    expected = reference.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.token_ids(chat(*messages)) == expected


def test_a_further_turn_continues_the_tokens_of_the_one_before(tokenizer):
    first = tokenizer.token_ids(chat(user("one two three"), add_generation_prompt=False))
    second = tokenizer.token_ids(
        chat(user("one two three"), {"role": "assistant", "content": "four"}, user("five"))
    )
    assert second[: len(first)] == first


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [([5, 6, 7], [5, 6, 7]), ([[5, 6], [7]], [5, 6])],
)
def test_completions_by_token_ids(tokenizer, prompt, expected):
    assert tokenizer.token_ids(completion(prompt)) == expected


@pytest.mark.parametrize("prompt", [[], [[]], [-1], [1.5], {"a": 1}, [{}], 7])
def test_completion_prompts_that_the_engine_refuses(tokenizer, prompt):
    with pytest.raises(PromptProblem):
        tokenizer.token_ids(completion(prompt))


def test_a_tokenizer_that_is_not_there_says_so(tmp_path):
    with pytest.raises(TokenizerUnavailable, match=r"cannot be loaded: give a folder with"):
        PromptTokenizer.load(str(tmp_path))


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize("inline_bytes", [0, 10**6], ids=["thread", "inline"])
async def test_preparing_gives_ids_and_keys(tokenizer, executor, inline_bytes):
    preparer = Preparer(tokenizer, executor, 5.0, inline_bytes, 10**7)
    prompt = await preparer.prepare(completion(list(range(33))))
    assert (prompt.num_tokens, prompt.problem) == (33, None)
    assert len(prompt.keys(HashSpec("m", 16))) == 2
    exact = await preparer.prepare(completion(list(range(32))))
    assert exact.keys(HashSpec("m", 16)) == prompt.keys(HashSpec("m", 16))[:1]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (chat(user("x"), chat_template="{{ x }}"), "refused"),
        (chat(user("\ud800")), "not_text"),
        (completion([[[[[]]]]]), "refused"),
    ],
)
@pytest.mark.parametrize("inline_bytes", [0, 10**6], ids=["thread", "inline"])
async def test_what_cannot_be_known_fails_open(tokenizer, executor, body, problem, inline_bytes):
    prompt = await Preparer(tokenizer, executor, 5.0, inline_bytes, 10**7).prepare(body)
    assert (prompt.packed_tokens, prompt.problem) == (None, problem)
    assert prompt.num_tokens >= 1
    assert prompt.head_key() is not None
    assert prompt.keys(HashSpec("m", 16)) == []


async def test_a_bug_in_a_template_fails_open(executor):
    class Broken:
        def begin(self, body):
            raise ZeroDivisionError

    prompt = await Preparer(Broken(), executor, 5.0, 0, 10**7).prepare(chat(user("x")))
    assert prompt.problem == "failed"


async def test_a_slow_tokenizer_meets_its_deadline(executor):
    release = threading.Event()

    class Slow:
        def begin(self, body):
            release.wait(10)
            raise PromptProblem("refused")

    prompt = await Preparer(Slow(), executor, 0.05, 0, 10**7).prepare(chat(user("x")))
    release.set()
    assert prompt.problem == "timeout"


async def test_a_prompt_that_is_too_large_is_not_tokenized(tokenizer, executor):
    preparer = Preparer(tokenizer, executor, 5.0, 0, max_bytes=1000)
    prompt = await preparer.prepare(chat(user("x" * 2000)))
    assert (prompt.problem, prompt.packed_tokens) == ("too_large", None)
    assert prompt.head_key() is not None


async def test_tenants_with_salts_have_different_heads(executor):
    preparer = Preparer(None, executor, 1.0, 0, 10**7)
    one = await preparer.prepare(chat(user("x"), cache_salt="a"))
    two = await preparer.prepare(chat(user("x"), cache_salt="b"))
    assert one.head_key() != two.head_key()
    assert one.problem == "no_tokenizer"
