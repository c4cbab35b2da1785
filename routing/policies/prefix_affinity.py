"""prefix_affinity: the longest cached prefix wins, then the fewest requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from routing.policies.base import Policy
from routing.types import Candidate, RouteQuery, Rung, Scores


@dataclass(frozen=True, slots=True)
class PrefixAffinity(Policy):
    """Tokens that the replica would have to prefill; load only breaks ties.

    Counts L0 and L1, which are this replica's own: an L2 copy is the same for every replica.
    """

    kind: ClassVar[str] = "prefix_affinity"

    def can_rank(self, query: RouteQuery) -> bool:
        """Need token ids, as every match is in tokens."""
        return query.rung in (Rung.PRECISE, Rung.PREDICTED)

    def score(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        rng: Random,  # noqa: ARG002 - nothing random here
    ) -> Scores:
        """Score by missing tokens plus a fraction below one token for the load."""
        prompt = query.num_prompt_tokens
        miss = [float(prompt - c.match.l0_tokens - c.match.l1_tokens) for c in candidates]
        # in-flight / (in-flight + 1) orders by load and never reaches one token
        tie = [c.load.in_flight / (c.load.in_flight + 1) for c in candidates]
        values = [tokens + ratio for tokens, ratio in zip(miss, tie, strict=True)]
        return Scores(values, {"miss_tokens": miss, "load_ratio": tie})
