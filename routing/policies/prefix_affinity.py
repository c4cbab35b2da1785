"""prefix_affinity: the longest cached prefix wins, then the fewest requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from routing.policies.base import Policy
from routing.types import Candidate, RouteQuery, Rung, Scored, ScoreTerm


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
    ) -> list[Scored]:
        """Score by missing tokens plus a fraction below one token for the load."""
        scores = []
        for candidate in candidates:
            own_tokens = candidate.match.l0_tokens + candidate.match.l1_tokens
            miss = float(query.num_prompt_tokens - own_tokens)
            # in-flight / (in-flight + 1) orders by load and never reaches one token
            tie = candidate.load.in_flight / (candidate.load.in_flight + 1)
            terms = (ScoreTerm("miss_tokens", miss), ScoreTerm("load_ratio", tie))
            scores.append(Scored(miss + tie, terms))
        return scores
