"""The words that the rest of the code speaks: what goes into a decision and what comes out.

Everything here is a frozen value. A decision is a pure function of one `RouteQuery` and the
`Candidate`s of one moment, so it can be logged, explained and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import NewType

from routing.value import value

ReplicaId = NewType("ReplicaId", str)
"""Names one running engine with its own KV cache and address."""

BlockKey = NewType("BlockKey", int)
"""64-bit unsigned digest of one full block and of everything before it (routing/hashing.py)."""


class Tier(StrEnum):
    """Where a block's KV data lies, from near to far."""

    L0 = "L0"  # the replica's GPU memory
    L1 = "L1"  # the replica's host memory
    L2 = "L2"  # the pool that every replica shares


class Rung(StrEnum):
    """How much was known about the prompt when it was routed, best first."""

    PRECISE = "precise"  # token ids, and replicas that report their caches by KV events
    PREDICTED = "predicted"  # token ids, and only our own routing history
    HASHED = "hashed"  # no token ids: the first bytes of the prompt name an affinity
    LOAD = "load"  # nothing that repeats: by load alone


class Reason(StrEnum):
    """Why the chosen replica was chosen."""

    BEST = "best"  # first in the policy's order
    SPILL = "spill"  # replicas that ranked higher were at their load cap
    ONLY = "only"  # the one eligible replica


@value
class PrefixMatch:
    """How much of one prompt one replica need not compute, by the tier that serves it.

    Attributes:
        l0_tokens: Leading tokens in the replica's GPU memory, whole blocks.
        l1_tokens: Tokens after those that its host memory serves.
        l2_tokens: Tokens after those that the shared pool serves.
        confirmed_tokens: The part of `l0_tokens` that KV events reported; the rest is predicted.
    """

    l0_tokens: int = 0
    l1_tokens: int = 0
    l2_tokens: int = 0
    confirmed_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Tokens that need no prefill, over all tiers."""
        return self.l0_tokens + self.l1_tokens + self.l2_tokens

    @property
    def deepest_tier(self) -> Tier | None:
        """The farthest tier that serves part of the match; None where nothing matched."""
        if self.l2_tokens:
            return Tier.L2
        if self.l1_tokens:
            return Tier.L1
        return Tier.L0 if self.l0_tokens else None


NO_MATCH = PrefixMatch()


@value
class ReplicaLoad:
    """What one replica still has to do for requests that we sent, counted by ourselves.

    Whole numbers, but where a load is seen relative to a weight (routing/weights.py).

    Attributes:
        in_flight: Requests sent and not yet ended.
        prefill_s: Outstanding prefill, in estimated seconds, drained by the clock.
        kv_tokens: Prompt tokens of the requests in flight: what each decode step must read.
    """

    in_flight: float = 0
    prefill_s: float = 0.0
    kv_tokens: float = 0


@value
class Candidate:
    """One eligible replica at the moment of a decision.

    Attributes:
        weight: Its share of the work against the others, above 0; only ratios count.
    """

    replica: ReplicaId
    load: ReplicaLoad = field(default_factory=ReplicaLoad)
    match: PrefixMatch = NO_MATCH
    weight: float = 1.0


@value
class RouteQuery:
    """What the router may know about one request. Never its text.

    Attributes:
        num_prompt_tokens: Prompt length in tokens; an estimate on the rungs below `predicted`.
        rung: How much is known about the prompt.
        affinity_key: 64 bits that requests with the same beginning share; None if there are none.
        session_key: 64 bits that requests of one session share; None without a session.
        sequence: How many requests of this model its policy was asked for before; turns round
            robin.
        num_gateways: Those that decide at once about the same replicas, this one included.
    """

    num_prompt_tokens: int
    rung: Rung = Rung.PRECISE
    affinity_key: int | None = None
    session_key: int | None = None
    sequence: int = 0
    num_gateways: int = 1


@value
class Scores:
    """A policy's opinion of all candidates: the lowest value wins, and the terms explain it.

    In columns, as long and in the same order as the candidates: of 300 candidates one is asked
    for, and an object for each with its terms took half of the decision.

    Attributes:
        values: One a candidate.
        terms: By name, in the unit that the name ends with: one a candidate.
    """

    values: Sequence[float]
    terms: Mapping[str, Sequence[float]]


@value
class RankedCandidate:
    """One candidate as the router saw it, for explanations.

    Attributes:
        candidate: With its load and weight as they are, not as the policy saw them.
        load_cap: Most requests that it may hold; None for a policy that is not bounded.
    """

    candidate: Candidate
    score: float
    terms: Mapping[str, float]
    load_cap: int | None

    @property
    def over_cap(self) -> bool:
        """Whether one more request would put it over its cap."""
        return self.load_cap is not None and self.candidate.load.in_flight + 1 > self.load_cap


@value
class Decision:
    """Where one request goes, and all that is needed to say why.

    Attributes:
        replica: The chosen replica.
        policy: The kind of the policy that ranked (a lower rung may have replaced the asked one).
        rung: How much was known.
        reason: Why this one.
        load_cap: Most requests that the chosen replica may hold after this decision; None for a
            policy that is not bounded.
        candidates: All of them, with their loads and weights as they are.
        scores: What the policy said of them, in the same order.
        load_caps: Most requests that each may hold, in the same order.
        places: Positions in these three, best first.
    """

    replica: ReplicaId
    policy: str
    rung: Rung
    reason: Reason
    load_cap: int | None
    candidates: Sequence[Candidate]
    scores: Scores
    load_caps: Sequence[int | None]
    places: Sequence[int]

    @property
    def ranked(self) -> list[RankedCandidate]:
        """All candidates with their terms, best first."""
        return [self._at(place) for place in self.places]

    @property
    def chosen(self) -> RankedCandidate:
        """The chosen candidate with its terms."""
        return self.ranked_of(self.replica)

    @property
    def order(self) -> list[ReplicaId]:
        """Replicas to try, in order: the chosen one, then by cap and rank."""
        rest = [ranked for ranked in self.ranked if ranked.candidate.replica != self.replica]
        rest.sort(key=lambda ranked: ranked.over_cap)  # stable: rank decides within each half
        return [self.replica, *(ranked.candidate.replica for ranked in rest)]

    def ranked_of(self, replica: ReplicaId) -> RankedCandidate:
        """Return one candidate with its terms.

        Raises:
            KeyError: It was no candidate.
        """
        for place, candidate in enumerate(self.candidates):
            if candidate.replica == replica:
                return self._at(place)
        raise KeyError(replica)

    def match_of(self, replica: ReplicaId) -> PrefixMatch:
        """Return what a replica was expected to hold; nothing where it was no candidate."""
        for candidate in self.candidates:
            if candidate.replica == replica:
                return candidate.match
        return NO_MATCH

    def _at(self, place: int) -> RankedCandidate:
        return RankedCandidate(
            candidate=self.candidates[place],
            score=self.scores.values[place],
            terms={name: column[place] for name, column in self.scores.terms.items()},
            load_cap=self.load_caps[place],
        )
