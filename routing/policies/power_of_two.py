"""power_of_two: the less loaded of two random replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from routing.policies.base import Policy
from routing.types import Candidate, RouteQuery, Scores
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
    ) -> Scores:
        """Score by in-flight; whoever was not drawn comes behind both that were."""
        drawn = _draw_two(candidates, rng)
        in_flight = [float(candidate.load.in_flight) for candidate in candidates]
        behind = 1.0 + max(in_flight)
        not_drawn = [0.0 if place in drawn else behind for place in range(len(candidates))]
        values = [load + penalty for load, penalty in zip(in_flight, not_drawn, strict=True)]
        return Scores(values, {"in_flight": in_flight, "not_drawn": not_drawn})


def _draw_two(candidates: Sequence[Candidate], rng: Random) -> set[int]:
    """Return the places of two different candidates, or of the only one."""
    places = range(len(candidates))
    if not differ(candidates):
        return set(rng.sample(places, min(2, len(candidates))))
    draws = [race(rng, candidate.weight) for candidate in candidates]
    return set(sorted(places, key=draws.__getitem__)[:2])
