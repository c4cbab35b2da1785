"""Several gateways in virtual time: shared loads keep the fleet even, private ones do not."""

import heapq
import random

from routing.fleet_load import FleetLoad, Snapshot
from routing.load import LoadBook
from routing.policies import ExpectedTtft
from routing.router import Router
from routing.types import Candidate, PrefixMatch, ReplicaId, RouteQuery

REPLICAS = [ReplicaId(f"r{n}") for n in range(8)]
TICK_S = 0.1
TTL_S = 1.0
REQUESTS_A_SECOND = 40.0
# The whole prompt is on r0 alone: every gateway wants to go there.
PROMPT_TOKENS = 4000
HOT = {REPLICAS[0]: PrefixMatch(l0_tokens=PROMPT_TOKENS - 16)}


class Gateway:
    def __init__(self, shares):
        self.book, self.fleet, self.shares = LoadBook(), FleetLoad(TTL_S), shares
        self.router = Router(ExpectedTtft())

    def load(self, replica, now):
        own = self.book.snapshot(replica, now)
        return self.fleet.of_fleet(replica, own, now) if self.shares else own

    def place(self, now, rng):
        gateways = self.fleet.num_others + 1 if self.shares else 1
        query = RouteQuery(PROMPT_TOKENS, num_gateways=gateways)
        seen = [
            Candidate(r, self.load(r, now), HOT.get(r, PrefixMatch(l0_tokens=2000)))
            for r in REPLICAS
        ]
        chosen = self.router.decide(query, seen, rng).replica
        return self.book.begin(chosen, 0.05, PROMPT_TOKENS, now)


def exchange(gateways, now):
    told = [Snapshot(now, one.book.busy(now)) for one in gateways]
    for one, own in zip(gateways, told, strict=True):
        one.fleet.note_own(own.loads, now)
        one.fleet.hear([other for other in told if other is not own], now)


def mean_skew(shares, num_gateways=4, seconds=16.0):
    """Return max over mean of the requests at each replica, averaged over a run's second half."""
    rng = random.Random(11)
    gateways = [Gateway(shares) for _ in range(num_gateways)]
    events = [(0.0, 0, "tick", None)]
    for number in range(int(REQUESTS_A_SECOND * seconds)):
        at = rng.uniform(0.0, seconds)
        heapq.heappush(events, (at, number + 1, "request", rng.choice(gateways)))
    skews, number = [], len(events)
    while events:
        now, _, kind, what = heapq.heappop(events)
        number += 1
        if now > seconds:
            break
        if kind == "tick":
            exchange(gateways, now)
            heapq.heappush(events, (now + TICK_S, number, "tick", None))
            totals = [
                sum(one.book.snapshot(r, now).in_flight for one in gateways) for r in REPLICAS
            ]
            if now > seconds / 2:
                skews.append(max(totals) / (sum(totals) / len(totals)))
        elif kind == "request":
            lease = what.place(now, rng)
            heapq.heappush(events, (now + 0.05, number, "token", (what.book, lease)))
            ends_at = now + 0.5 + rng.expovariate(1 / 1.5)
            heapq.heappush(events, (ends_at, number + 10**6, "end", (what.book, lease)))
        elif kind == "token":
            what[0].first_token(what[1], now)
        else:
            what[0].end(what[1])
    return sum(skews) / len(skews)


def test_shared_loads_keep_the_fleet_as_even_as_one_gateway_does_and_private_ones_do_not():
    one, shared, private = mean_skew(True, 1), mean_skew(True), mean_skew(False)
    assert shared <= 1.05 * one
    assert shared <= 1.7
    # Each fills the replica that all want up to a bound of its own: mean + 4, four times over.
    assert private >= 1.3 * shared
