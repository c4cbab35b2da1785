"""consistent_hash: requests that begin alike go to the same replica, without any index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from routing.policies.base import Policy, only, rendezvous_distance
from routing.types import Candidate, RouteQuery, Scores
from routing.weights import differ, stretched


@dataclass(frozen=True, slots=True)
class ConsistentHash(Policy):
    """Rendezvous hash of the affinity key. With the load bound: bounded consistent hashing."""

    kind: ClassVar[str] = "consistent_hash"

    def can_rank(self, query: RouteQuery) -> bool:
        """Need a key that requests with the same beginning share."""
        return query.affinity_key is not None

    def score(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        rng: Random,  # noqa: ARG002 - nothing random here
    ) -> Scores:
        """Score by distance from the affinity key; see `distances`."""
        return distances(query.affinity_key, candidates)


def distances(key: int | None, candidates: Sequence[Candidate]) -> Scores:
    """Score candidates by their rendezvous distance from `key`.

    In [0, 1); with different weights stretched, so that each owns keys in proportion to its weight
    and a changed weight moves only keys to or away from that replica.

    Raises:
        ValueError: There is no key: the policy's `can_rank` was not asked.
    """
    if key is None:
        raise ValueError("cannot rank by a key that the request does not have")
    scores = [rendezvous_distance(key, candidate.replica) for candidate in candidates]
    if differ(candidates):
        pairs = zip(scores, candidates, strict=True)
        scores = [stretched(score, candidate.weight) for score, candidate in pairs]
    return only("hash_distance", scores)
