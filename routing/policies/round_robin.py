"""round_robin: one after the other. A baseline: it knows neither caches nor load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import ClassVar

from routing.policies.base import Policy, only
from routing.types import Candidate, RouteQuery, Scores
from routing.weights import differ

# 2**64 over the golden ratio, as in Knuth's multiplicative hashing: multiples of it, modulo 2**64,
# fall into every interval as often as it is long, and evenly spread over time.
_GOLDEN_64 = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class RoundRobin(Policy):
    """Turns by the request's sequence number. Not bounded, so that it stays the plain baseline.

    With different weights the turns are points that walk round a circle on which each candidate
    has an arc as long as its weight.
    """

    kind: ClassVar[str] = "round_robin"
    bounded: ClassVar[bool] = False

    def score(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        rng: Random,  # noqa: ARG002 - nothing random here
    ) -> Scores:
        """Score by how many turns away each candidate is."""
        count = len(candidates)
        turns = [float((i - query.sequence) % count) for i in range(count)]
        if differ(candidates):
            turns = _arcs_away(candidates, query.sequence)
        return only("turns_away", turns)


def _arcs_away(candidates: Sequence[Candidate], sequence: int) -> list[float]:
    """Return how far the end of each candidate's arc is from the point of a turn."""
    ends = list(accumulate(candidate.weight for candidate in candidates))
    circle = ends[-1]
    point = sequence * _GOLDEN_64 % 2**64 / 2**64 * circle
    # A point on the border of two arcs belongs to the second; at an end, a whole circle is left.
    return [end - point if end > point else end - point + circle for end in ends]
