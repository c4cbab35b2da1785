"""expected_ttft: send a request where its first token is expected soonest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import ClassVar

from routing.cost import CostModel
from routing.policies.base import Policy
from routing.types import NO_MATCH, Candidate, PrefixMatch, RouteQuery, Rung, Scored, ScoreTerm

_Priced = tuple[float, ScoreTerm, ScoreTerm]  # seconds to load and prefill, and the two as terms


class Profile(StrEnum):
    """The two forms of the rule."""

    ADDITIVE = "additive"  # lowest TTFT
    BALANCED = "balanced"  # lower skew and end-to-end time, p99 TTFT about 5% higher


@dataclass(frozen=True, slots=True)
class ExpectedTtft(Policy):
    """Expected time to first token, priced by tier.

    additive: queue + load + w * prefill + d * decode step
    balanced: (queue + load + w * prefill + fixed) * (in-flight + 1)

    Attributes:
        cost: Prices of the model's replicas.
        profile: Which form.
        prefill_weight: w. Above 1 because own prefill also delays the requests behind it.
        decode_steps: d. How many decode steps of a busy replica a new request is charged for.
        fixed_s: Seconds that a request costs even with a full hit; `balanced` only. One engine
            step, without which a full hit would make in-flight requests count for nothing.

    Source:
        w = 2 and d = 20 are the best of a sweep over six workloads on eight simulated replicas
        (docs/adr/0006).
    """

    kind: ClassVar[str] = "expected_ttft"

    cost: CostModel = field(default_factory=CostModel)
    profile: Profile = Profile.ADDITIVE
    prefill_weight: float = 2.0
    decode_steps: float = 20.0
    fixed_s: float = 8e-3

    def can_rank(self, query: RouteQuery) -> bool:
        """Need token ids: without them every match is empty and only load would speak."""
        return query.rung in (Rung.PRECISE, Rung.PREDICTED)

    def score(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        rng: Random,  # noqa: ARG002 - nothing random here
    ) -> list[Scored]:
        """Score by seconds; see the class."""
        form = self._balanced if self.profile is Profile.BALANCED else self._additive
        cold = self._priced(query, NO_MATCH)  # once: most of a large fleet hold nothing
        return [
            form(cold if c.match is NO_MATCH else self._priced(query, c.match), c)
            for c in candidates
        ]

    def _priced(self, query: RouteQuery, match: PrefixMatch) -> _Priced:
        price = self.cost.usable(match, query.num_prompt_tokens)
        prefill_s = self.prefill_weight * price.prefill_s
        load_term = ScoreTerm("load_s", price.load_s)
        return price.load_s + prefill_s, load_term, ScoreTerm("prefill_s", prefill_s)

    def _additive(self, priced: _Priced, candidate: Candidate) -> Scored:
        load, cost, (price_s, load_term, prefill_term) = candidate.load, self.cost, priced
        queue_s = load.prefill_s
        # As `CostModel.decode_step_s`; a call for each of 300 candidates is 5% of the decision.
        step_s = cost.decode_sequence_s * load.in_flight + cost.decode_kv_token_s * load.kv_tokens
        decode_s = self.decode_steps * step_s
        return Scored(
            queue_s + price_s + decode_s,
            (
                ScoreTerm("queue_s", queue_s),
                load_term,
                prefill_term,
                ScoreTerm("decode_s", decode_s),
            ),
        )

    def _balanced(self, priced: _Priced, candidate: Candidate) -> Scored:
        load, (price_s, load_term, prefill_term) = candidate.load, priced
        batch = load.in_flight + 1
        return Scored(
            (load.prefill_s + price_s + self.fixed_s) * batch,
            (
                ScoreTerm("queue_s", load.prefill_s),
                load_term,
                prefill_term,
                ScoreTerm("fixed_s", self.fixed_s),
                ScoreTerm("times_batch", batch),
            ),
        )
