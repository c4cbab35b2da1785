"""What `forward_token_ids` costs a gateway, and what it saves an engine.

    python -m tests.measure.forwarding [--requests 60] [--tokenizer FOLDER]

Run by `make measure-prompts`. The engine's side is what vLLM does with the same body: transformers
renders and tokenizes the whole prompt, or json reads the ids. There is no goal: the figures say
when the option is worth it.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import httpx
from transformers import AutoTokenizer

from gateway.prompt.forwarding import splice_token_ids
from loadtests.measurement import ROOT, Measurement, Report
from loadtests.usage import cpu_s
from routing.hashing import pack_tokens
from tests.support.processes import gateway_process
from tests.support.simulators import running_replica

TOKENIZERS = (ROOT / "tests/data/tokenizers/qwen3", ROOT / "loadtests/demo_model")
CHAT = "/v1/chat/completions"
NUM_TOKENS = 8000
NUM_TURNS = 8
SEED = 7


def chats(rng: Random, count: int, num_chars: int) -> list[bytes]:
    """Return bodies of chats that share nothing."""
    words = ["".join(rng.choices("etaoinshrdlucm", k=rng.randint(2, 9))) for _ in range(4000)]
    bodies = []
    for _ in range(count):
        messages = []
        for turn in range(NUM_TURNS):
            text, length = [], 0
            while length < num_chars // NUM_TURNS:
                text.append(rng.choice(words))
                length += len(text[-1]) + 1
            messages.append({"role": ("user", "assistant")[turn % 2], "content": " ".join(text)})
        messages = messages[:-1]  # a question comes last
        fields = {"model": "demo-model", "max_tokens": 1, "messages": messages}
        bodies.append(json.dumps(fields).encode())
    return bodies


async def cpu_ms(folder: Path, bodies: list[bytes], *, forward: bool) -> tuple[float, float]:
    """Return CPU time a request of the gateway and of the simulated engine."""
    flags = ("--tokenizer", str(folder), "--speed", "100", "--max-model-len", "32768")
    with running_replica(*flags) as engine, tempfile.TemporaryDirectory() as work:
        model = {
            "name": "demo-model",
            "tokenizer": str(folder),
            "forward_token_ids": forward,
            "replicas": [{"url": engine.url}],
        }
        prepare = {"check_every": 0, "timeout_s": 5.0}
        config = {"models": [model], "prepare": prepare}
        async with (
            gateway_process(Path(work), config) as gateway,
            httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as client,
        ):
            pids = ([gateway.process.pid], [engine.process.pid])
            await _send(client, bodies[:5])
            before = [cpu_s(pid) for pid in pids]
            await _send(client, bodies[5:])
            spent = [cpu_s(pid) - start for pid, start in zip(pids, before, strict=True)]
    ours, theirs = (1e3 * seconds / len(bodies[5:]) for seconds in spent)
    return ours, theirs


async def _send(client: httpx.AsyncClient, bodies: list[bytes]) -> None:
    headers = {"content-type": "application/json"}
    for body in bodies:
        answer = await client.post(CHAT, content=body, headers=headers)
        assert answer.status_code == 200, answer.text


def p50_ms(work: Callable[[bytes], object], bodies: list[bytes]) -> float:
    times = []
    for body in bodies:
        started = time.perf_counter()
        work(body)
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


def main() -> int:
    program = Measurement("tests.measure.forwarding", __doc__.partition("\n")[0])
    add = program.options.add_argument
    add("--requests", type=int, default=60)
    add("--tokenizer", type=Path, help="a folder; default: Qwen3's where it is")
    return program.run(None, measure)


def measure(given: argparse.Namespace, _folder: Path) -> Report:
    folder = given.tokenizer or next(f for f in TOKENIZERS if (f / "tokenizer.json").is_file())
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(body: bytes) -> list[int]:
        messages = json.loads(body)["messages"]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer.encode(text, add_special_tokens=False))

    rng = Random(SEED)
    [sample] = chats(rng, 1, 20_000)
    bodies = chats(rng, given.requests + 5, 20_000 * NUM_TOKENS // len(ids(sample)))
    spliced = [splice_token_ids(body, pack_tokens(ids(body))) for body in bodies]
    found = {
        "tokenizer": folder.name,
        "tokens": round(statistics.mean(len(ids(body)) for body in bodies)),
        "body_bytes": round(statistics.mean(map(len, bodies))),
        "spliced_bytes": round(statistics.mean(map(len, spliced))),
        "engine_tokenizes_ms": p50_ms(ids, bodies),
        "engine_reads_ids_ms": p50_ms(json.loads, spliced),
    }
    for name, forward in (("plain", False), ("forwarded", True)):
        ours, theirs = asyncio.run(cpu_ms(folder, bodies, forward=forward))
        found |= {f"gateway_cpu_ms_{name}": ours, f"simulator_cpu_ms_{name}": theirs}
    for name, figure in found.items():
        print(
            f"{name:28} {figure:>12.2f}" if isinstance(figure, float) else f"{name:28} {figure:>12}"
        )
    return Report(found)


if __name__ == "__main__":
    sys.exit(main())
