"""session: all requests of one session go to the same replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from routing.policies.base import Policy
from routing.policies.consistent_hash import distances
from routing.types import Candidate, RouteQuery, Scores


@dataclass(frozen=True, slots=True)
class Session(Policy):
    """Rendezvous hash of the session key; a request without a session goes by its beginning."""

    kind: ClassVar[str] = "session"

    def can_rank(self, query: RouteQuery) -> bool:
        """Need a session key."""
        return query.session_key is not None

    def score(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        rng: Random,  # noqa: ARG002 - nothing random here
    ) -> Scores:
        """Score by distance from the session key; see `distances`."""
        return distances(query.session_key, candidates)
