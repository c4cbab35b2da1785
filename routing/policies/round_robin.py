"""round_robin: one after the other. A baseline: it knows neither caches nor load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from routing.policies.base import Policy
from routing.types import Candidate, RouteQuery, Scored, ScoreTerm


@dataclass(frozen=True, slots=True)
class RoundRobin(Policy):
    """Turns by the request's sequence number. Not bounded, so that it stays the plain baseline."""

    kind: ClassVar[str] = "round_robin"
    bounded: ClassVar[bool] = False

    def score(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        rng: Random,  # noqa: ARG002 - nothing random here
    ) -> list[Scored]:
        """Score by how many turns away each candidate is."""
        count = len(candidates)
        turns = (float((i - query.sequence) % count) for i in range(count))
        return [Scored(turn, (ScoreTerm("turns_away", turn),)) for turn in turns]
