"""The routing rule: eligible -> rank -> bound -> choose -> explain. Pure.

The load bound lives here and not in the policies, so no policy, ours or a user's, can bring skew
back (docs/adr/0011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from routing.bound import load_cap
from routing.policies import ConsistentHash, LeastLoaded, Policy
from routing.types import (
    Candidate,
    Decision,
    Reason,
    RouteQuery,
    Scores,
)
from routing.weights import differ, race, relative

# Several gateways see the same loads a moment late, and would all send to the one that looks best
# until they see each other's work. So much more or less spreads them. A tenth costs 1% at 13 long
# prompts a second, and 3% gains as much less at 150 short ones (docs/adr/0041).
NOISE_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class LoadBound:
    """How far above the mean one replica may go; see `routing.bound.load_cap`.

    Source:
        1.5 and 4 come from the same sweep as the default policy's weights (docs/adr/0006).
    """

    load_bound: float = 1.5
    slack: int = 4


@dataclass(frozen=True, slots=True)
class Router:
    """Decides where a request goes, by one policy, its bound and the policies below it.

    Attributes:
        policy: Ranks the candidates where enough is known about the request.
        bound: The load bound, applied to every policy that does not refuse it.
        fallbacks: Asked in order where `policy` cannot rank; the last one always can.
    """

    policy: Policy
    bound: LoadBound = LoadBound()
    fallbacks: tuple[Policy, ...] = field(default=(ConsistentHash(), LeastLoaded()))

    def decide(self, query: RouteQuery, candidates: Sequence[Candidate], rng: Random) -> Decision:
        """Choose one of the candidates.

        Args:
            query: What is known about the request.
            candidates: Eligible replicas, at least 1, in any order.
            rng: Breaks ties, and draws for policies that draw.

        Raises:
            ValueError: There are no candidates. Whether that is a 503 is the caller's business.
        """
        if not candidates:
            raise ValueError("no candidates to decide between")
        candidates = sorted(candidates, key=lambda candidate: candidate.replica)
        weighted = differ(candidates)
        seen = relative(candidates) if weighted else candidates
        policy = self._policy_for(query)
        scores = policy.score(query, seen, rng)
        if query.num_gateways > 1 and policy.by_load:
            scores = _blurred(scores, rng)
        # A draw behind each score breaks ties, so that replicas share the work as weights say.
        ties = [race(rng, c.weight) if weighted else rng.random() for c in seen]
        caps = self._caps(policy, candidates, seen if weighted else None)
        # Numbers alone are sorted: with 300 candidates twice as fast as by a key function.
        rows = sorted(zip(scores.values, ties, range(len(ties)), strict=True))
        places = [place for _, _, place in rows]
        chosen, reason = _choose(candidates, caps, places)
        return Decision(
            replica=candidates[chosen].replica,
            policy=policy.kind,
            rung=query.rung,
            reason=reason,
            load_cap=caps[chosen],
            candidates=candidates,
            scores=scores,
            load_caps=caps,
            places=places,
        )

    def _policy_for(self, query: RouteQuery) -> Policy:
        if self.policy.can_rank(query):
            return self.policy
        return next(policy for policy in self.fallbacks if policy.can_rank(query))

    def _caps(
        self,
        policy: Policy,
        candidates: Sequence[Candidate],
        weighted: Sequence[Candidate] | None,
    ) -> Sequence[int | None]:
        """Return each candidate's load cap: in proportion to its weight, one for all if equal."""
        count = len(candidates)
        if not policy.bounded:
            return [None] * count
        total = sum(candidate.load.in_flight for candidate in candidates)
        bound, slack = self.bound.load_bound, self.bound.slack
        if weighted is None:
            return [load_cap(total, count, bound, slack)] * count
        return [load_cap(total, count, bound, slack, candidate.weight) for candidate in weighted]


def _blurred(scores: Scores, rng: Random) -> Scores:
    """Return scores with a little noise, which is one more term."""
    noise = [NOISE_RATIO * value * rng.uniform(-1.0, 1.0) for value in scores.values]
    values = [value + term for value, term in zip(scores.values, noise, strict=True)]
    return Scores(values, {**scores.terms, "noise": noise})


def _choose(
    candidates: Sequence[Candidate], caps: Sequence[int | None], places: Sequence[int]
) -> tuple[int, Reason]:
    """Return the best place that is under its cap; `load_cap` leaves at least one."""
    if len(places) == 1:
        return places[0], Reason.ONLY
    for place in places:
        cap = caps[place]
        if cap is None or candidates[place].load.in_flight + 1 <= cap:
            return place, Reason.BEST if place == places[0] else Reason.SPILL
    raise AssertionError("every candidate is over its cap")
