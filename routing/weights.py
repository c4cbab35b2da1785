"""Weights: how much of the work a replica is meant to get, against the others.

A weight changes what load means and nothing else. Policies see loads divided by it, the load
bound gives each replica a cap in proportion, and ties are drawn in proportion; so one with weight
2 settles at twice the load of one with 1. Where all weights are equal, decisions are exactly those
without weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log1p
from random import Random

from routing.types import Candidate, ReplicaLoad


def differ(candidates: Sequence[Candidate]) -> bool:
    """Return whether the candidates have different weights; nearly always they have not."""
    return len({candidate.weight for candidate in candidates}) > 1


def relative(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates of different weights as policies see them: loads over weights of mean 1.

    Args:
        candidates: At least one, with weights above 0.
    """
    mean = sum(candidate.weight for candidate in candidates) / len(candidates)
    return [_relative(candidate, candidate.weight / mean) for candidate in candidates]


def _relative(candidate: Candidate, weight: float) -> Candidate:
    load = candidate.load
    felt = ReplicaLoad(load.in_flight / weight, load.prefill_s / weight, load.kv_tokens / weight)
    return replace(candidate, load=felt, weight=weight)


def race(rng: Random, weight: float) -> float:
    """Return a draw, at least 0; of several, each is the lowest as often as its weight says.

    Source:
        Efraimidis, Spirakis, "Weighted random sampling with a reservoir" (2006): exponential
        variables of rate `weight`.
    """
    return stretched(rng.random(), weight)


def stretched(uniform: float, weight: float) -> float:
    """Return a number of [0, 1) as an exponential variable of rate `weight`.

    Equal weights keep the order. Of several replicas, each has the lowest in proportion to its
    weight, and when one weight changes, the lowest moves only to or away from that replica.

    Source:
        Schindelhauer, Schomaker, "Weighted Distributed Hash Tables" (2005): the logarithmic method.
    """
    return -log1p(-uniform) / weight
