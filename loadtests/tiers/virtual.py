"""One replica in virtual time, asked by a number of clients."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from routing.lab.engine_model import EngineModel, StepResult
from routing.lab.engine_profile import EngineProfile
from routing.lab.sequence import Admission, EngineRequest
from routing.lab.tiers import TierPool

BLOCK_SIZE: Final = 16
# As published; the first of them ends the wait that is measured.
ANSWER_TOKENS: Final = 5

Prompt = Sequence[int]
"""Token ids."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        num_tokens: Of its prompt.
        ttft_s: Seconds to the first token.
        e2e_s: Seconds to the last one.
        admission: What was cached, by tier.
    """

    num_tokens: int
    ttft_s: float
    e2e_s: float
    admission: Admission


class Replica:
    """A model replica whose clients each ask one prompt after the other.

    Args:
        profile: Times and sizes.
        pool: Shared with other replicas; None switches L2 off.
    """

    def __init__(self, profile: EngineProfile, pool: TierPool | None) -> None:
        self._model = EngineModel(profile, block_size=BLOCK_SIZE, l2=pool, kv_events=False)
        self._now = 0.0
        self._numbers = itertools.count()

    def ask(self, clients: Sequence[Sequence[Prompt]]) -> list[Asked]:
        """Let all clients ask at once, and again as soon as they are answered.

        Args:
            clients: The prompts of each, in their order.

        Returns:
            All requests, in the order in which they ended.
        """
        run = _Run(self._model, self._now, clients, self._numbers)
        asked = run.to_end()
        self._now = run.now
        return asked


class _Run:
    """One call of Replica.ask."""

    def __init__(
        self,
        model: EngineModel,
        now: float,
        clients: Sequence[Sequence[Prompt]],
        numbers: "itertools.count[int]",
    ) -> None:
        self.now = now
        self._model = model
        self._numbers = numbers
        self._left = [iter(prompts) for prompts in clients]
        self._client_by_id: dict[str, int] = {}
        self._sent: dict[str, tuple[int, float]] = {}  # prompt tokens, when
        self._first: dict[str, tuple[float, Admission]] = {}
        self._asked: list[Asked] = []

    def to_end(self) -> list[Asked]:
        for client in range(len(self._left)):
            self._next(client)
        while self._sent:
            duration_s = self._model.begin_step(self.now)
            if duration_s is not None:
                self.now += duration_s
                self._take(self._model.finish_step())
            else:
                assert self._model.next_load_at is not None, "requests wait for nothing"
                self.now = self._model.next_load_at
        return self._asked

    def _next(self, client: int) -> None:
        prompt = next(self._left[client], None)
        if prompt is None:
            return
        request_id = str(next(self._numbers))
        self._client_by_id[request_id] = client
        self._sent[request_id] = len(prompt), self.now
        self._model.submit(EngineRequest(request_id, prompt, range(ANSWER_TOKENS)))

    def _take(self, result: StepResult) -> None:
        for token in result.tokens:
            if token.admission is not None:
                self._first[token.request_id] = self.now, token.admission
        for request_id in result.finished:
            num_tokens, sent_at = self._sent.pop(request_id)
            first_at, admission = self._first.pop(request_id)
            ttft_s, e2e_s = first_at - sent_at, self.now - sent_at
            self._asked.append(Asked(num_tokens, ttft_s, e2e_s, admission))
            self._next(self._client_by_id.pop(request_id))


def prompts(count: int, num_tokens: int, first: int = 0) -> list[Prompt]:
    """Return prompts that share nothing, as they differ in the first two tokens.

    Args:
        count: How many.
        num_tokens: Of each.
        first: Number of the first; the same number and length give the same prompt.
    """
    rest = range(num_tokens - 2)
    return [[number, num_tokens, *rest] for number in range(first, first + count)]
