"""Steady short chats over several gateways in turn, each with the time that it took."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from loadtests.demo.client import Answer, ask
from loadtests.demo.fleet import MODEL
from loadtests.workloads.sessions import TimedRequest

_PATH: Final = "/v1/chat/completions"
_TIMEOUT_S: Final = 20.0
# As many conversations come back again and again, so that look-ups find something.
NUM_TOPICS: Final = 40


def question(topic: int, number: int) -> dict[str, object]:
    """Return the body of one chat: some 15 blocks that all questions on a topic begin with."""
    text = f"Topic {topic}. " + f"This is what we said about topic {topic} so far. " * 16
    messages = [{"role": "user", "content": f"{text} Question {number}?"}]
    return {"model": MODEL, "messages": messages, "max_tokens": 1}


@dataclass(slots=True)
class Traffic:
    """Sends requests at a rate while the block runs; leaving it waits for the last answer.

    Attributes:
        urls: Gateways, asked in turn.
        rate_per_s: Requests a second, whatever the answers do.
        answers: In the order in which they ended.
    """

    urls: Sequence[str]
    rate_per_s: float
    answers: list[Answer] = field(default_factory=list)
    _sender: asyncio.Task[None] | None = None
    _asking: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._send())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._sender is not None:
            self._sender.cancel()
        if kind is not None:
            for task in self._asking:
                task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def took_s(self, since_s: float, until_s: float) -> list[float]:
        """Return how long the answers took to requests sent in a span of the monotonic clock."""
        return [a.end_s - a.sent_s for a in self.answers if since_s <= a.sent_s < until_s]

    async def _send(self) -> None:
        started = time.monotonic()
        number = 0
        while True:
            task = asyncio.create_task(self._ask(number))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            number += 1
            await asyncio.sleep(started + number / self.rate_per_s - time.monotonic())

    async def _ask(self, number: int) -> None:
        topic = number % NUM_TOPICS
        request = TimedRequest(0.0, f"topic-{topic}", "chaos", _PATH, question(topic, number))
        # By an odd stride, or each gateway would see half of the topics only.
        url = self.urls[(number // NUM_TOPICS + number) % len(self.urls)]
        self.answers.append(await ask(url, request, _TIMEOUT_S))
