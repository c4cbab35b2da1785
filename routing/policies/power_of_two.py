"""power_of_two: the less loaded of two random replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from routing.policies.base import Policy
from routing.policies.least_loaded import by_in_flight
from routing.types import Candidate, RouteQuery, Scored, ScoreTerm
from routing.weights import differ, race


@dataclass(frozen=True, slots=True)
class PowerOfTwo(Policy):
    """Two random candidates by in-flight, then all others by in-flight.

    With different weights each is drawn as often as its weight says: compared alone, a candidate
    could never get more than its turn in the draw.

    Source:
        Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).
    """

    kind: ClassVar[str] = "power_of_two"

    def score(
        self,
        query: RouteQuery,  # noqa: ARG002 - only load speaks
        candidates: Sequence[Candidate],
        rng: Random,
    ) -> list[Scored]:
        """Score by in-flight; whoever was not drawn comes behind both that were."""
        drawn = _draw_two(candidates, rng)
        behind = 1.0 + max(candidate.load.in_flight for candidate in candidates)
        scores = []
        for i, candidate in enumerate(candidates):
            scored = by_in_flight(candidate)
            if i not in drawn:
                penalty = ScoreTerm("not_drawn", behind)
                scored = Scored(scored.score + behind, (*scored.terms, penalty))
            scores.append(scored)
        return scores


def _draw_two(candidates: Sequence[Candidate], rng: Random) -> set[int]:
    """Return the places of two different candidates, or of the only one."""
    places = range(len(candidates))
    if not differ(candidates):
        return set(rng.sample(places, min(2, len(candidates))))
    draws = [race(rng, candidate.weight) for candidate in candidates]
    return set(sorted(places, key=draws.__getitem__)[:2])
