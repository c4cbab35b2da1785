"""What is prepared on the event loop, what in a thread, and which blocks a cache can serve."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.prompt.body import BodyKind, read_body
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.keys import BlockKeys
from gateway.prompt.prepare import INLINE_MESSAGES, Preparer, Prompt
from gateway.prompt.tokenizer import PromptTokenizer
from routing.hashing import HashSpec, block_keys, pack_tokens

SPEC = HashSpec("m", 4)


class CountingExecutor(ThreadPoolExecutor):
    num_submitted = 0

    def submit(self, *args, **kwargs):
        self.num_submitted += 1
        return super().submit(*args, **kwargs)


@pytest.fixture
def executor():
    with CountingExecutor(1) as executor:
        yield executor


@pytest.fixture(scope="module")
def plain():
    """Without short cuts: what is new costs 0.7 us a byte."""
    return PromptTokenizer.load("loadtests/demo_model")


def chat(*texts):
    messages = [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(texts)]
    return read_body(json.dumps({"model": "m", "messages": messages}).encode(), BodyKind.CHAT)


@pytest.mark.parametrize(
    ("body", "threads"),
    [
        (chat("Hello"), 0),
        (chat("long " * 400), 1),
        (chat(*["x"] * INLINE_MESSAGES), 0),
        (chat(*["x"] * (INLINE_MESSAGES + 1)), 1),
        (chat("x" * 20_000), 1),
    ],
    ids=["short", "much is new", "16 messages", "17 messages", "long"],
)
async def test_what_takes_long_is_left_to_a_thread(plain, executor, body, threads):
    prompt = await Preparer(plain, executor, 5.0, 16 * 1024, 2**20).prepare(body, (SPEC,))
    assert prompt.problem is None
    assert executor.num_submitted == threads
    assert prompt.keys(SPEC) == prompt.keys_by_spec[SPEC] != []


async def test_a_known_text_of_any_length_needs_no_thread(executor):
    cache = ByteCache(2**20)
    tokenizer = PromptTokenizer.load("loadtests/demo_model", cache)
    preparer = Preparer(tokenizer, executor, 5.0, 16 * 1024, 2**20, BlockKeys(cache))
    body = chat("some text of fair length " * 600)
    first = await preparer.prepare(body, (SPEC,))
    assert executor.num_submitted == 1
    second = await preparer.prepare(body, (SPEC,))
    assert executor.num_submitted == 1
    assert second.packed_tokens == first.packed_tokens
    assert second.keys(SPEC) == first.keys(SPEC)


@pytest.mark.parametrize(
    ("num_known", "num_tokens", "blocks"),
    [(8, 8, 1), (9, 9, 2), (8, 20, 2), (7, 20, 1), (0, 20, 0)],
    ids=["never the last token", "one more", "known beginning", "part of a block", "nothing known"],
)
def test_a_cache_serves_known_blocks_and_never_the_last_token(num_known, num_tokens, blocks):
    packed = pack_tokens(range(num_known))
    prompt = Prompt(packed, num_tokens, chat("x"), None, whole=num_known == num_tokens)
    assert prompt.keys(SPEC) == block_keys(packed, SPEC)[:blocks]
    assert len(prompt.keys(SPEC)) == blocks
