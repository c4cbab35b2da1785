"""What a policy is: it ranks candidates. The router bounds and chooses (routing/router.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import ClassVar

from xxhash import xxh3_64_intdigest

from routing.types import Candidate, ReplicaId, RouteQuery, Scores


class Policy(ABC):
    """Scores candidates; the lowest score wins and ties are broken at random by the router.

    A policy holds parameters and nothing else: equal arguments and equal random numbers give
    equal scores, so that a decision can be explained and replayed.
    """

    kind: ClassVar[str]
    """The name that configuration uses."""

    bounded: ClassVar[bool] = True
    """Whether the router applies the load bound. Only a baseline has a reason to say no."""

    by_load: ClassVar[bool] = False
    """Whether scores rise with the load, so that the router may blur them; see `routing.router`."""

    def can_rank(self, query: RouteQuery) -> bool:  # noqa: ARG002 - the default needs nothing
        """Return whether enough is known about this request; else the router asks the next one."""
        return True

    @abstractmethod
    def score(self, query: RouteQuery, candidates: Sequence[Candidate], rng: Random) -> Scores:
        """Return one score a candidate, in the order of `candidates`.

        Args:
            query: What is known about the request; `can_rank` said yes to it.
            candidates: Eligible replicas, at least 1, sorted by replica id. Their loads are
                relative to their weights already; a policy that does not go by load has to look
                at the weights itself, where they differ.
            rng: The only source of randomness.
        """


def only(name: str, values: Sequence[float]) -> Scores:
    """Return scores that are one term."""
    return Scores(values, {name: values})


def rendezvous_distance(key: int, replica: ReplicaId) -> float:
    """Return in [0, 1) how far a replica is from a key; the nearest one owns it.

    Adding or removing a replica moves only the keys that it owned.

    Source:
        Thaler, Ravishankar, "A Name-Based Mapping Scheme for Rendezvous" (1996).
    """
    # The upper 53 bits, which a float holds exactly: all 64 could round up to 1.
    return (xxh3_64_intdigest(replica.encode(), key) >> 11) / 2.0**53
