"""The same with processes: simulated replicas, files in a directory, HTTP and the wall clock."""

import asyncio
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Final

import msgspec
import yaml

from loadtests.children import ChildError, Children
from loadtests.demo.client import Answer, ask
from loadtests.programs import environment, simulator_argv
from loadtests.tiers.sweep import Way
from loadtests.tiers.virtual import ANSWER_TOKENS, BLOCK_SIZE, Prompt
from loadtests.workloads.sessions import TimedRequest
from routing.lab.engine_profile import EngineProfile

MODEL: Final = "demo"
_TIMEOUT_S: Final = 120.0
_PATH: Final = "/v1/completions"
# Engine seconds a wall second of the writer, whose times nobody looks at. The others keep to the
# clock: between an answer and the client's next request goes real time, which speed would stretch.
_WRITER_SPEED: Final = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """What a replica made of some requests.

    Attributes:
        ttft_s: Mean seconds to the first token. Of one client it is the median, as nothing but
            the machine's other programs tells its requests apart.
        e2e_s: The same to the end.
        cached_tokens: Prompt tokens that were not computed, in all.
        prompt_tokens: In all.
    """

    ttft_s: float
    e2e_s: float
    cached_tokens: int
    prompt_tokens: int


class Fleet:
    """Replicas over one directory.

    Args:
        writer: Base address of the one that computes for the others.
        readers: Base addresses of those that are asked, by their way.
    """

    def __init__(self, writer: str, readers: Mapping[Way, str]) -> None:
        self._writer = writer
        self._readers = readers

    def warm_up(self, prompts: Sequence[Prompt]) -> None:
        """Ask every replica something, as a process's first requests are slow."""
        for url in (self._writer, *self._readers.values()):
            self._ask(url, [prompts])

    def write(self, prompts: Sequence[Prompt]) -> None:
        """Have prompts computed, one after the other, and written to the directory."""
        self._ask(self._writer, [prompts])

    def ask(self, way: Way, clients: Sequence[Sequence[Prompt]]) -> Served:
        """Ask a replica that has not seen these prompts: each client's one after the other."""
        return self._ask(self._readers[way], clients)

    def _ask(self, url: str, clients: Sequence[Sequence[Prompt]]) -> Served:
        answers = asyncio.run(_ask_all(url, clients))
        for answer in answers:
            if answer.failure is not None or answer.ttft_s is None:
                raise ChildError(f"{url}: {answer.failure or 'no text'} {answer.detail}")
        middle = median if len(clients) == 1 else fmean
        return Served(
            ttft_s=middle([answer.ttft_s or 0.0 for answer in answers]),
            e2e_s=middle([answer.end_s - answer.sent_s for answer in answers]),
            cached_tokens=sum(answer.cached_tokens for answer in answers),
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        )


@contextmanager
def running(profile: EngineProfile, folder: Path) -> Iterator[Fleet]:
    """Start replicas with empty caches and an empty directory; end them afterwards.

    Args:
        profile: The engine's times and sizes.
        folder: For logs, profiles and the directory.

    Raises:
        ChildError: One did not start.
    """
    shared = folder / "l2"
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir(parents=True)
    # Chunks of one block, as the published replicas kept partial chunks.
    l2 = ("--l2-dir", str(shared), "--l2-chunk-size", str(BLOCK_SIZE))
    in_turn = _written(replace(profile, loads_overlap=False), folder / "in-turn.yaml")
    at_once = _written(replace(profile, loads_overlap=True), folder / "at-once.yaml")
    argv_by_way = {
        Way.COLD: _argv(in_turn),
        Way.IN_TURN: [*_argv(in_turn), *l2],
        Way.AT_ONCE: [*_argv(at_once), *l2],
    }
    with Children(environment(), folder) as children:
        writer = children.start("writer", [*_argv(in_turn, _WRITER_SPEED), *l2])
        started = {
            way: children.start(way.name.lower().replace("_", "-"), argv)
            for way, argv in argv_by_way.items()
        }
        urls = {way: child.wait_ready()["url"] for way, child in started.items()}
        yield Fleet(writer.wait_ready()["url"], urls)


def _written(profile: EngineProfile, path: Path) -> Path:
    path.write_text(yaml.safe_dump(msgspec.to_builtins(profile)), encoding="utf-8")
    return path


async def _ask_all(url: str, clients: Sequence[Sequence[Prompt]]) -> list[Answer]:
    found = await asyncio.gather(*(_ask_in_turn(url, prompts) for prompts in clients))
    return [answer for answers in found for answer in answers]


async def _ask_in_turn(url: str, prompts: Sequence[Prompt]) -> list[Answer]:
    return [await ask(url, _request(prompt), _TIMEOUT_S) for prompt in prompts]


def _request(prompt: Prompt) -> TimedRequest:
    body = {
        "model": MODEL,
        "prompt": list(prompt),
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return TimedRequest(0.0, "", "one_shot", _PATH, body)


def _argv(profile: Path, speed: float = 1.0) -> list[str]:
    timed = {"profile": profile, "speed": speed}
    return [*simulator_argv(model=MODEL, block_size=BLOCK_SIZE, **timed), "--no-kv-events"]
