"""What a prompt costs from its body to its block keys, against the whole-prompt way, on one core.

    python -m tests.measure.prompts [--rounds 40] [--tokenizer FOLDER]

Run by `make measure-prompts`.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random

from gateway.prompt.body import BodyKind, RequestBody, read_body
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.keys import BlockKeys
from gateway.prompt.prepare import Prompt, prepare_now
from gateway.prompt.tokenizer import PromptTokenizer
from gateway.serving import GC_NEW_OBJECTS
from loadtests.measurement import ROOT, Measurement, Report
from routing.hashing import HashSpec, block_keys, max_matched_blocks, pack_tokens

TOKENIZERS = (ROOT / "tests/data/tokenizers/qwen3", ROOT / "loadtests/demo_model")
SPEC = HashSpec("m", 16)
MIB = 1024 * 1024
SEED = 11
ENDS = (" ", ", ", ".\n", "(x)[0] = ", "\n    ", " 1024 ")

# The goals. They were set when the whole-prompt way took 63 ms for 22,000 tokens.
MAX_TURN_22K_MS = 1.0
MAX_TURN_65K_MS = 3.0
MAX_COLD_8K_MS = 3.0
MIN_CHATS = 2000
CHAT_CACHE_BYTES = 64 * MIB


@dataclass(frozen=True)
class Row:
    """One line of the table; `goal` is a bound from above, or from below for a count."""

    name: str
    tokens: int
    figure: float
    unit: str
    goal: float
    whole_prompt_ms: float | None = None

    @property
    def is_met(self) -> bool:
        return self.figure >= self.goal if self.unit == "chats" else self.figure <= self.goal


class Words:
    """Text that no tokenizer has seen: sentences, code and other scripts, of drawn words."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        letters = ("etaoinshrdlucmfwyp", "аеиностр", "的一是不了人我在有他")
        weights = (14, 2, 1)
        self._words = [
            "".join(rng.choices(rng.choices(letters, weights)[0], k=rng.randint(1, 9)))
            for _ in range(4000)
        ]

    def text(self, num_chars: int) -> str:
        rng, pieces, length = self._rng, [], 0
        while length < num_chars:
            word = rng.choice(self._words)
            [end] = rng.choices(
                (" ", ", ", ".\n", "(x)[0] = ", "\n    ", " 1024 "), (30, 3, 2, 1, 1, 1)
            )
            pieces += (word, end)
            length += len(word) + len(end)
        return "".join(pieces)[:num_chars]


def chat(turns: list[str]) -> RequestBody:
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": "You are a careful assistant."}]
    messages += [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    return read_body(json.dumps({"model": "m", "messages": messages}).encode(), BodyKind.CHAT)


class Bench:
    """One tokenizer, with and without the short cuts."""

    def __init__(self, folder: Path) -> None:
        self.cache = ByteCache(256 * MIB)
        self.fast = PromptTokenizer.load(str(folder), self.cache)
        self.keys = BlockKeys(self.cache)
        self.words = Words(Random(SEED))
        text = self.words.text(20_000)
        self.chars_a_token = len(text) / len(self.whole_ids(text))

    def whole_ids(self, text: str) -> list[int]:
        return list(self.fast.reference.encode(text, add_special_tokens=False))

    def forget(self, max_bytes: int = 256 * MIB) -> None:
        self.cache.resize(0)
        self.cache.resize(max_bytes)

    def prepare(self, body: RequestBody) -> Prompt:
        return prepare_now(self.fast, body, (SPEC,), self.keys)

    def texts(self, num_tokens: int, num_messages: int) -> list[str]:
        chars = int(num_tokens * self.chars_a_token / num_messages)
        return [self.words.text(chars) for _ in range(num_messages)]

    def whole_prompt(self, body: RequestBody) -> list[int]:
        """Do what a gateway without short cuts does: transformers, then a hash of every block."""
        reference = self.fast.reference
        text = reference.apply_chat_template(
            body.fields["messages"], tokenize=False, add_generation_prompt=True
        )
        packed = pack_tokens(self.whole_ids(text))
        usable = max_matched_blocks(len(packed) // 4, SPEC.block_size) * SPEC.block_size * 4
        return list(block_keys(packed[:usable], SPEC))


def p50_ms(times: list[float]) -> float:
    return 1e3 * statistics.median(times)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def turn_row(bench: Bench, name: str, num_tokens: int, rounds: int, goal: float) -> Row:
    """Measure a chat that comes back with one new turn: an answer and a question."""
    bench.forget()
    before = [*bench.texts(num_tokens, 40), "And what follows from that?"]
    bench.prepare(chat(before))
    times, whole, tokens = [], [], 0
    for number in range(rounds):
        body = chat([*before, bench.words.text(600), bench.words.text(300)])
        times.append(timed(partial(bench.prepare, body)))
        if number < 3:
            whole.append(timed(partial(bench.whole_prompt, body)))
            prompt = bench.prepare(body)
            tokens = prompt.num_tokens
            assert prompt.keys(SPEC) == bench.whole_prompt(body)
    return Row(name, tokens, p50_ms(times), "ms", goal, p50_ms(whole))


def cold_row(bench: Bench, rounds: int) -> Row:
    """Measure prompts of which nothing was seen before."""
    bench.forget()
    bodies = [chat(bench.texts(8000, 1)) for _ in range(rounds)]
    times = [timed(partial(bench.prepare, body)) for body in bodies]
    whole = [timed(partial(bench.whole_prompt, body)) for body in bodies[:3]]
    tokens = bench.prepare(bodies[0]).num_tokens
    return Row("cold prompt", tokens, p50_ms(times), "ms", MAX_COLD_8K_MS, p50_ms(whole))


def chats_row(bench: Bench) -> Row:
    """Count the chats of 8,000 tokens in eight messages that 64 MiB keep whole."""
    bench.forget(CHAT_CACHE_BYTES)
    tokens, num_chats = 0, 0
    while bench.cache.num_bytes < CHAT_CACHE_BYTES - 64 * 1024:
        tokens += bench.prepare(chat(bench.texts(8000, 8))).num_tokens
        num_chats += 1
    mean = tokens // num_chats
    return Row("chats of 8,000 tokens in 64 MiB", mean, num_chats * mean / 8000, "chats", MIN_CHATS)


def rows(bench: Bench, rounds: int) -> Iterator[Row]:
    yield turn_row(bench, "22k chat, one new turn", 22_000, rounds, MAX_TURN_22K_MS)
    yield turn_row(bench, "65k chat, one new turn", 65_000, rounds, MAX_TURN_65K_MS)
    yield cold_row(bench, rounds)
    yield chats_row(bench)


def show(row: Row) -> None:
    sign = ">=" if row.unit == "chats" else "<="
    whole = "" if row.whole_prompt_ms is None else f"{row.whole_prompt_ms:9.1f} ms"
    figure = f"{row.figure:8.2f}" if row.unit == "ms" else f"{row.figure:8.0f}"
    met = "met" if row.is_met else "MISSED"
    print(
        f"{row.name:32} {row.tokens:7} {figure} {row.unit:5} {sign} {row.goal:<6g} {met:7} {whole}"
    )


def main() -> int:
    program = Measurement("tests.measure.prompts", __doc__.partition("\n")[0])
    add = program.options.add_argument
    add("--rounds", type=int, default=40, help="prompts of each kind")
    add("--tokenizer", type=Path, help="a folder; default: Qwen3's where it is")
    return program.run(None, measure)


def measure(given: argparse.Namespace, _folder: Path) -> Report:
    # One core, which the tokenizer's own threads count.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    folder = given.tokenizer or next(f for f in TOKENIZERS if (f / "tokenizer.json").is_file())
    bench = Bench(folder)
    # As `warmroute serve` does once it has started, for both ways alike.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_NEW_OBJECTS)
    proven = bench.fast.proven
    print(f"tokenizer {folder.name}, one core, p50 of {given.rounds}")
    print(f"faster: {proven.not_faster or 'yes'}; segments kept: {proven.not_kept or 'yes'}")
    print(f"{'':32} {'tokens':>7} {'figure':>8} {'':5} {'goal':18} {'whole prompt':>9}")
    found = []
    for row in rows(bench, given.rounds):
        show(row)
        found.append(row)
    missed = [f"{row.name}: {row.figure:.2f} {row.unit}" for row in found if not row.is_met]
    return Report({"rows": [asdict(row) for row in found]}, missed)


if __name__ == "__main__":
    sys.exit(main())
