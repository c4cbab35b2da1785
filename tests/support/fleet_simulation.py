"""Several gateways in virtual time before replicas that prefill one prompt after the other."""

import heapq
import itertools
import random
from dataclasses import dataclass

from routing.fleet_load import FleetLoad, Snapshot
from routing.load import LoadBook
from routing.policies import ExpectedTtft
from routing.router import Router
from routing.types import Candidate, PrefixMatch, ReplicaId, RouteQuery

REPLICAS = [ReplicaId(f"r{n}") for n in range(8)]
TTL_S = 1.0
PREFILL_TOKEN_S = 78e-6  # the default cost model's, of an A10G and 8 billion parameters
LOOKUP_S = 0.7e-3  # what a request waits for its look-up, while it hears the others
TOLD_AFTER_S = 0.3e-3
MIN_PAUSE_S = 0.005


@dataclass(frozen=True)
class Traffic:
    """What arrives.

    Attributes:
        rate_per_s: Requests a second, by chance; 0 for 100 within 60 ms, every 5 s.
        tokens: Of the median prompt; the spread is that of `sigma`, log-normal.
        shares: Of a prompt that its home replica holds, one drawn for each.
        hot: Share of the prompts whose home is the first replica.
        speed: Of the replicas.
    """

    rate_per_s: float
    tokens: float
    sigma: float
    shares: tuple[float, ...]
    hot: float = 0.0
    speed: float = 1.0


CHATS = Traffic(13.0, 4000, 0.8, (0.3, 0.9, 0.95, 0.95, 0.95), speed=0.5)
BURSTS = Traffic(0.0, 1600, 0.5, (0.0, 0.5, 0.9, 0.95), hot=0.5)
SHORT = Traffic(150.0, 735, 0.6, (0.3, 0.9, 0.95, 0.95, 0.95))


@dataclass(frozen=True)
class Sharing:
    """How gateways share loads.

    Attributes:
        num_gateways: One knows all by itself.
        tick_s: Between two exchanges by the clock; None: never.
        around_decisions: Whether a request hears what is older than the least pause, and tells.
    """

    num_gateways: int = 4
    tick_s: float | None = 0.025
    around_decisions: bool = False


@dataclass(frozen=True)
class Found:
    """What came of it.

    Attributes:
        ttft_s: Mean.
        skew: Max over mean of the requests at each replica, averaged over the second half.
    """

    ttft_s: float
    skew: float


class Gateway:
    def __init__(self):
        self.book, self.fleet = LoadBook(), FleetLoad(TTL_S)
        self.router = Router(ExpectedTtft())
        self.told = Snapshot(0.0, {})
        self.heard_at = -1.0

    def tick(self, others, now):
        self.told = Snapshot(now, self.book.busy(now))
        self.fleet.note_own(self.told.loads, now)
        self.fleet.hear([other.told for other in others], now)
        self.heard_at = now

    def choose(self, tokens, held_by_home, home, now, rng):
        """Return the replica, and how many tokens it holds."""
        begins = PrefixMatch(l0_tokens=min(512, held_by_home))
        match = {home: PrefixMatch(l0_tokens=held_by_home)}
        seen = [
            Candidate(
                replica,
                self.fleet.of_fleet(replica, self.book.snapshot(replica, now), now),
                match.get(replica, begins),
            )
            for replica in REPLICAS
        ]
        query = RouteQuery(tokens, num_gateways=self.fleet.num_others + 1)
        chosen = self.router.decide(query, seen, rng).replica
        return chosen, match.get(chosen, begins).l0_tokens


class Simulation:
    def __init__(self, sharing, traffic, seed):
        self.sharing, self.traffic = sharing, traffic
        self.rng = random.Random(seed)
        self.gateways = [Gateway() for _ in range(sharing.num_gateways)]
        self.free_at = dict.fromkeys(REPLICAS, 0.0)
        self.waits, self.skews = [], []
        self.events, self.order = [], itertools.count()

    def later(self, at, what, *about):
        heapq.heappush(self.events, (at, next(self.order), what, about))

    def run(self, seconds):
        # The same traffic however it is shared.
        rng = random.Random(self.rng.random())
        for at in self.arrivals(rng, seconds):
            tokens = int(
                min(24_000, rng.lognormvariate(0, self.traffic.sigma) * self.traffic.tokens)
            )
            home = REPLICAS[0] if rng.random() < self.traffic.hot else rng.choice(REPLICAS)
            held = int(tokens * rng.choice(self.traffic.shares))
            late, answer_s = rng.uniform(0.8, 1.25), 0.3 + rng.expovariate(1 / 1.5)
            gateway = self.gateways[rng.randrange(4) % len(self.gateways)]
            self.later(at, self.arrive, gateway, tokens, held, home, late, answer_s)
        for gateway in self.gateways:
            if self.sharing.tick_s is not None:
                self.later(self.rng.uniform(0, self.sharing.tick_s), self.tick_on, gateway, seconds)
        self.later(seconds / 2, self.look, seconds)
        while self.events:
            now, _, what, about = heapq.heappop(self.events)
            what(now, *about)
        return Found(sum(self.waits) / len(self.waits), sum(self.skews) / len(self.skews))

    def arrivals(self, rng, seconds):
        at = 0.0
        while at < seconds:
            rate = self.traffic.rate_per_s
            at += rng.expovariate(rate) if rate else 5.0
            yield from [at] if rate else (at + rng.uniform(0.0, 0.06) for _ in range(100))

    def arrive(self, now, gateway, *about):
        if self.sharing.around_decisions and now - gateway.heard_at > MIN_PAUSE_S:
            self.tick(now, gateway)
        self.later(now + LOOKUP_S, self.place, gateway, *about)

    def place(self, now, gateway, tokens, held, home, late, answer_s):
        replica, cached = gateway.choose(tokens, held, home, now, self.rng)
        prefill_s = (tokens - cached) * PREFILL_TOKEN_S / self.traffic.speed
        lease = gateway.book.begin(replica, prefill_s, tokens, now)
        if self.sharing.around_decisions:
            at = max(now + TOLD_AFTER_S, gateway.heard_at + MIN_PAUSE_S)
            self.later(at, self.tick, gateway)
        done = max(now, self.free_at[replica]) + 0.01 + prefill_s * late
        self.free_at[replica] = done
        self.waits.append(done - now)
        self.later(done, lambda at: gateway.book.first_token(lease, at))
        self.later(done + answer_s, lambda _: gateway.book.end(lease))

    def tick(self, now, gateway):
        gateway.tick([other for other in self.gateways if other is not gateway], now)

    def tick_on(self, now, gateway, until):
        self.tick(now, gateway)
        if now < until:
            at = now + self.sharing.tick_s * self.rng.uniform(0.9, 1.0)
            self.later(at, self.tick_on, gateway, until)

    def look(self, now, until):
        snapshot = [[g.book.snapshot(r, now).in_flight for g in self.gateways] for r in REPLICAS]
        totals = [sum(loads) for loads in snapshot]
        if any(totals):
            self.skews.append(max(totals) * len(totals) / sum(totals))
        if now < until:
            self.later(now + 0.1, self.look, until)


def simulate(sharing, traffic, seconds, seed):
    """Run one simulation."""
    return Simulation(sharing, traffic, seed).run(seconds)
