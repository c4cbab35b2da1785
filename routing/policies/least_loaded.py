"""least_loaded: the fewest requests in flight wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from routing.policies.base import Policy, only
from routing.types import Candidate, RouteQuery, Scores


@dataclass(frozen=True, slots=True)
class LeastLoaded(Policy):
    """Requests in flight, counted by ourselves. Also what every policy falls back to."""

    kind: ClassVar[str] = "least_loaded"
    by_load: ClassVar[bool] = True

    def score(
        self,
        query: RouteQuery,  # noqa: ARG002 - only load speaks
        candidates: Sequence[Candidate],
        rng: Random,  # noqa: ARG002 - the router breaks ties
    ) -> Scores:
        """Score by requests in flight, over the weight where weights differ."""
        return only("in_flight", [float(candidate.load.in_flight) for candidate in candidates])
