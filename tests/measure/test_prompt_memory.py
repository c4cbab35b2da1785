"""What is kept of prompts stays within its bound, however many chats there are."""

import json
import multiprocessing
from pathlib import Path

import pytest

from gateway.prompt.body import BodyKind, read_body
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.keys import BlockKeys
from gateway.prompt.prepare import prepare_now
from gateway.prompt.tokenizer import PromptTokenizer
from routing.hashing import HashSpec

MIB = 1024 * 1024
NUM_CHATS = 100_000
CACHE_BYTES = 16 * MIB
# Besides what is kept: what the allocator holds between two chats, and the tokenizers' own tables
# of words, which have a bound of their own.
SLACK_BYTES = 48 * MIB


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def chat(number):
    """A short chat of which nothing but the system prompt was there before."""
    words = " ".join(f"w{(number * 31 + i) % 99_991:x}" for i in range(40))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{number} {words}"},
    ]
    return read_body(json.dumps({"model": "m", "messages": messages}).encode(), BodyKind.CHAT)


def talk():
    cache = ByteCache(CACHE_BYTES)
    tokenizer = PromptTokenizer.load("loadtests/demo_model", cache)
    keys = BlockKeys(cache)
    warm = 0
    for number in range(NUM_CHATS):
        prepare_now(tokenizer, chat(number), (HashSpec("m", 1),), keys)
        assert cache.num_bytes <= CACHE_BYTES
        if number == NUM_CHATS // 10:
            warm = resident_bytes()
    assert cache.num_bytes > CACHE_BYTES - MIB
    assert resident_bytes() - warm <= SLACK_BYTES
    # What every chat shares was never the least recently used.
    assert tokenizer.seconds(tokenizer.begin(chat(NUM_CHATS - 1))) == 0.0


@pytest.mark.timeout(900)  # half a minute of CPU
def test_100_000_chats_leave_the_cache_at_its_bound():
    """In a process of its own: memory that other tests gave back would hide what is kept."""
    own = multiprocessing.get_context("spawn").Process(target=talk)
    own.start()
    own.join()
    assert own.exitcode == 0  # what was wrong stands on standard error
