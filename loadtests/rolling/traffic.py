"""Steady traffic of short chats, half of them streams, that keeps every answer."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from loadtests.demo.client import Answer, Failure, ask
from loadtests.demo.fleet import MODEL
from loadtests.workloads.sessions import TimedRequest
from loadtests.workloads.steady import Steady

_PATH: Final = "/v1/chat/completions"
# No answer here takes seconds; one that does is a failure.
_TIMEOUT_S: Final = 20.0
# Long enough that every replica always has open streams: about half a second.
_MAX_TOKENS: Final = 48
# As many conversations go on at once; each comes back with the same beginning. They make the
# streams. The other requests begin something new, as without any an idle cold replica would rightly
# stay idle.
_NUM_TOPICS: Final = 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: what was asked for, and what came back."""

    stream: bool
    answer: Answer

    @property
    def told(self) -> bool:
        """Whether a failure was told in words: an error status, or a stream's error event."""
        failure = self.answer.failure
        event = failure is Failure.BROKEN and self.answer.detail.startswith("error event")
        return failure is Failure.STATUS or event


class Traffic(Steady):
    """Short chats, half of them streams; see `Steady`.

    Args:
        url: A gateway or a balancer.
        rate_per_s: Requests a second.

    Attributes:
        outcomes: In the order in which the answers ended.
    """

    def __init__(self, url: str, rate_per_s: float) -> None:
        super().__init__(rate_per_s)
        self._url = url
        self.outcomes: list[Outcome] = []

    async def served_by(self, replica: str, since_s: float, deadline_s: float) -> float | None:
        """Return when a replica got its first request of those sent after `since_s`.

        Args:
            replica: Its name.
            since_s: Of the monotonic clock.
            deadline_s: How long to wait for it.

        Returns:
            Seconds from `since_s` to the sending of that request; None where none came.
        """
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            sent = [
                outcome.answer.sent_s - since_s
                for outcome in self.outcomes
                if outcome.answer.replica == replica and outcome.answer.sent_s >= since_s
            ]
            if sent:
                return min(sent)
            await asyncio.sleep(0.02)
        return None

    async def ask(self, number: int) -> None:
        """Send a stream, or a whole answer, in turn."""
        stream = number % 2 == 0
        answer = await ask(self._url, _request(number, stream=stream), _TIMEOUT_S)
        self.outcomes.append(Outcome(stream, answer))


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return those that failed."""
    return [outcome for outcome in outcomes if outcome.answer.failure is not None]


def _request(number: int, *, stream: bool) -> TimedRequest:
    topic = str(number // 2 % _NUM_TOPICS) if stream else f"number {number}"
    text = f"Topic {topic}. " + f"This is what we said about topic {topic} so far. " * 8
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{text} Question {number}?"}],
        "max_tokens": _MAX_TOKENS,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return TimedRequest(0.0, f"topic-{topic}", "rolling", _PATH, body)
