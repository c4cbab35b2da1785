"""least_loaded: the fewest requests in flight wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from routing.policies.base import Policy
from routing.types import Candidate, RouteQuery, Scored, ScoreTerm


@dataclass(frozen=True, slots=True)
class LeastLoaded(Policy):
    """Requests in flight, counted by ourselves. Also what every policy falls back to."""

    kind: ClassVar[str] = "least_loaded"

    def score(
        self,
        query: RouteQuery,  # noqa: ARG002 - only load speaks
        candidates: Sequence[Candidate],
        rng: Random,  # noqa: ARG002 - the router breaks ties
    ) -> list[Scored]:
        """Score by requests in flight."""
        return [by_in_flight(candidate) for candidate in candidates]


def by_in_flight(candidate: Candidate) -> Scored:
    """Score one candidate by its requests in flight, over its weight where weights differ."""
    in_flight = float(candidate.load.in_flight)
    return Scored(in_flight, (ScoreTerm("in_flight", in_flight),))
