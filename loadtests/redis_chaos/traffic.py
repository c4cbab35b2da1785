"""Steady short chats over several gateways in turn, each with the time that it took."""

from collections.abc import Sequence
from typing import Final

from loadtests.demo.client import Answer, ask
from loadtests.demo.fleet import MODEL
from loadtests.workloads.sessions import TimedRequest
from loadtests.workloads.steady import Steady

_PATH: Final = "/v1/chat/completions"
_TIMEOUT_S: Final = 20.0
# As many conversations come back again and again, so that look-ups find something.
NUM_TOPICS: Final = 40


def question(topic: int, number: int) -> dict[str, object]:
    """Return the body of one chat: some 15 blocks that all questions on a topic begin with."""
    text = f"Topic {topic}. " + f"This is what we said about topic {topic} so far. " * 16
    messages = [{"role": "user", "content": f"{text} Question {number}?"}]
    return {"model": MODEL, "messages": messages, "max_tokens": 1}


class Traffic(Steady):
    """Short chats about topics that come back; see `Steady`.

    Args:
        urls: Gateways, asked in turn.
        rate_per_s: Requests a second.

    Attributes:
        answers: In the order in which they ended.
    """

    def __init__(self, urls: Sequence[str], rate_per_s: float) -> None:
        super().__init__(rate_per_s)
        self._urls = urls
        self.answers: list[Answer] = []

    def took_s(self, since_s: float, until_s: float) -> list[float]:
        """Return how long the answers took to requests sent in a span of the monotonic clock."""
        return [a.end_s - a.sent_s for a in self.answers if since_s <= a.sent_s < until_s]

    async def ask(self, number: int) -> None:
        """Send one chat to the gateway whose turn it is."""
        topic = number % NUM_TOPICS
        request = TimedRequest(0.0, f"topic-{topic}", "chaos", _PATH, question(topic, number))
        # By an odd stride, or each gateway would see half of the topics only.
        url = self._urls[(number // NUM_TOPICS + number) % len(self._urls)]
        self.answers.append(await ask(url, request, _TIMEOUT_S))
