"""expected_ttft: send a request where its first token is expected soonest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import ClassVar

from routing.cost import CostModel
from routing.policies.base import Policy
from routing.types import NO_MATCH, Candidate, RouteQuery, Rung, Scores


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
    by_load: ClassVar[bool] = True

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
    ) -> Scores:
        """Score by seconds; see the class."""
        queue_s = [candidate.load.prefill_s for candidate in candidates]
        load_s, prefill_s = self._prices(query, candidates)
        terms = {"queue_s": queue_s, "load_s": load_s, "prefill_s": prefill_s}
        columns = zip(queue_s, load_s, prefill_s, strict=True)
        sums = [queue + load + prefill for queue, load, prefill in columns]
        if self.profile is Profile.BALANCED:
            fixed_s = self.fixed_s
            batch = [candidate.load.in_flight + 1 for candidate in candidates]
            values = [(s + fixed_s) * times for s, times in zip(sums, batch, strict=True)]
            terms |= {"fixed_s": [fixed_s] * len(candidates), "times_batch": batch}
        else:
            decode_s = self._decode_s(candidates)
            values = [s + decode for s, decode in zip(sums, decode_s, strict=True)]
            terms["decode_s"] = decode_s
        return Scores(values, terms)

    def _prices(
        self, query: RouteQuery, candidates: Sequence[Candidate]
    ) -> tuple[list[float], list[float]]:
        """Return the seconds to load and to prefill, the latter weighted, for each candidate."""
        load_s: list[float] = []
        prefill_s: list[float] = []
        usable, weight, num_tokens = self.cost.usable, self.prefill_weight, query.num_prompt_tokens
        cold = usable(NO_MATCH, num_tokens, weight)  # once: most of a large fleet hold nothing
        before, price = NO_MATCH, cold
        for candidate in candidates:
            match = candidate.match
            # Or nothing but what the shared pool has, which is then the same object for all.
            if match is not before:
                before = match
                price = cold if match is NO_MATCH else usable(match, num_tokens, weight)
            load_s.append(price.load_s)
            prefill_s.append(weight * price.prefill_s)
        return load_s, prefill_s

    def _decode_s(self, candidates: Sequence[Candidate]) -> list[float]:
        # As `CostModel.decode_step_s`; a call for each of 300 candidates is 5% of the decision.
        sequence_s = self.decode_steps * self.cost.decode_sequence_s
        token_s = self.decode_steps * self.cost.decode_kv_token_s
        loads = (candidate.load for candidate in candidates)
        return [sequence_s * load.in_flight + token_s * load.kv_tokens for load in loads]
