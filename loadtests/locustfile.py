"""Locust users of an OpenAI-compatible fleet: chat, RAG, agent, hot prompt, one-shot, embeddings.

    locust -f loadtests/locustfile.py --headless --users 24 --run-time 60s --host http://...

`make loadtest` does that against the demo fleet. TTFT is to the first chunk with text; the hit
ratio is what the replicas report in `usage`. Where the fleet has no endpoint for embeddings (404,
501), they are counted as skipped and not as errors.
"""

import json
import random
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, ClassVar, Final

from locust import User, constant, events, task
from locust.env import Environment
from locust.exception import StopUser
from rich.console import Console
from rich.table import Table

from loadtests.demo.client import Answer, Failure, ask_blocking
from loadtests.demo.figures import Figures, figures
from loadtests.demo.report import failures
from loadtests.workloads import made
from loadtests.workloads.sessions import EMBEDDINGS

SEED: Final = 1
SHARED: Final = made.shared(SEED)
_TIMEOUT_S: Final = 60.0
_NOT_SERVED: Final = frozenset((404, 501))


class Summary:
    """Collects answers by kind of traffic and prints one table at the end."""

    def __init__(self) -> None:
        self._answers = defaultdict[str, list[Answer]](list)
        self._skipped = defaultdict[str, int](int)

    def note(self, name: str, context: Mapping[str, Any], **_: Any) -> None:
        """Take one of locust's request events; users put the answer into its context."""
        answer: Answer = context["answer"]
        if is_skipped(name, answer):
            self._skipped[name] += 1
        else:
            self._answers[name].append(answer)

    def show(self, environment: Environment, **_: Any) -> None:
        """Print the table. A run that measured nothing has failed."""
        table = Table(title="Measured at the client; TTFT in seconds")
        for title in _COLUMNS:
            table.add_column(title, justify="left" if title == "kind" else "right")
        for name, answers in sorted(self._answers.items()):
            table.add_row(name, *_cells(answers))
        everything = [answer for answers in self._answers.values() for answer in answers]
        if everything:
            table.add_section()
            table.add_row("all", *_cells(everything))
        else:
            environment.process_exit_code = 1
        console = Console()
        console.print(table)
        for name, skipped in self._skipped.items():
            console.print(f"{name}: {skipped} skipped, the fleet has no endpoint for them")
        for line in failures(everything):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


_COLUMNS: Final = ("kind", "requests", "p50", "p90", "p99", "mean", "hit ratio", "errors")


def _cells(answers: list[Answer]) -> list[str]:
    replicas = {answer.replica for answer in answers}
    result: Figures = figures(answers, len(replicas))
    times = (result.ttft_p50_s, result.ttft_p90_s, result.ttft_p99_s, result.ttft_mean_s)
    return [
        str(len(answers)),
        *(f"{time_s:.3f}" for time_s in times),
        f"{result.prefix_hit_ratio:.3f}",
        str(result.errors),
    ]


def is_skipped(kind: str, answer: Answer) -> bool:
    """Return whether the fleet simply has no such endpoint."""
    return kind == EMBEDDINGS and answer.status in _NOT_SERVED


def prepare(environment: Environment, **_: Any) -> None:
    """Give the run a summary."""
    summary = Summary()
    _listen(environment.events.request, summary.note)
    _listen(environment.events.quitting, summary.show)


def _listen(hook: Any, listener: Callable[..., None]) -> None:
    # Any, because locust's hooks have no types.
    hook.add_listener(listener)


_listen(events.init, prepare)


class Talker(User):
    """Has one conversation of its kind after another."""

    abstract = True
    kind = ""
    numbers: ClassVar = count()  # of locust's users: each has a seed of its own
    wait_time = constant(0.5)  # seconds between two sessions of one user

    def on_start(self) -> None:
        """Ask the host which model it serves."""
        self.number = next(self.numbers)
        self.rng = random.Random(f"{SEED}/{self.kind}/{self.number}")
        self.num_sessions = 0
        self.model = ""
        try:
            with urllib.request.urlopen(  # noqa: S310 - the person who runs this names the host
                f"{self.host}/v1/models", timeout=_TIMEOUT_S
            ) as answer:
                self.model = str(json.load(answer)["data"][0]["id"])
        except (OSError, ValueError, LookupError) as error:
            detail = f"{self.host}/v1/models names no model: {error}"
            self._report(Answer(0.0, failure=Failure.UNREACHABLE, detail=detail))
            # The same would befall every user.
            self.environment.runner.quit()

    @task
    def converse(self) -> None:
        """Have one session from its first turn to its last."""
        if not self.model:
            raise StopUser
        session_id = f"{self.kind}-{self.number}-{self.num_sessions}"
        session = made.session_at(self.rng, self.kind, session_id, 0.0, SHARED)
        self.num_sessions += 1
        replies: list[str] = []
        for index, turn in enumerate(session.turns):
            time.sleep(turn.pause_s)  # locust has made it give way to the other users
            request = session.request(index, replies, self.model, 0.0)
            answer = ask_blocking(str(self.host), request, _TIMEOUT_S)
            self._report(answer)
            replies.append(answer.text)

    def _report(self, answer: Answer) -> None:
        failed = answer.failure is not None and not is_skipped(self.kind, answer)
        self.environment.events.request.fire(
            request_type="POST",
            name=self.kind,
            response_time=1000 * (answer.ttft_s or answer.end_s - answer.sent_s),  # milliseconds
            response_length=len(answer.text),
            exception=RuntimeError(f"{answer.failure}: {answer.detail}") if failed else None,
            context={"answer": answer},
        )


class ChatUser(Talker):
    """Multi-turn chats."""

    kind = "chat"
    weight = 6


class RagUser(Talker):
    """Questions over shared documents."""

    kind = "rag"
    weight = 6


class AgentUser(Talker):
    """Agents with tools."""

    kind = "agent"
    weight = 4


class HotPromptUser(Talker):
    """Questions under one long system prompt."""

    kind = "hot"
    weight = 4


class OneShotUser(Talker):
    """Prompts that share nothing."""

    kind = "one_shot"
    weight = 2


class EmbeddingsUser(Talker):
    """Texts to embed."""

    kind = EMBEDDINGS
    weight = 2
    wait_time = constant(2.0)
