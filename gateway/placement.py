"""From what is known about a request to a decision and a lease, in one step without a wait.

Between the snapshot of the loads and the new lease nothing else may run, or 200 requests that
arrive at once would all see the same idle replica (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from xxhash import xxh3_64_intdigest

from gateway.config.models import IndexConfig
from gateway.errors import NoEligibleReplica
from gateway.index.base import Prediction, PrefixIndex
from gateway.models import Choice, Model
from gateway.prompt.prepare import Prompt
from gateway.replicas.registry import Registry, Replica, rung_of
from routing.credit import taken_tokens
from routing.hashing import HashSpec
from routing.load import Lease, LoadBook, Loads
from routing.types import (
    NO_MATCH,
    BlockKey,
    Candidate,
    Decision,
    PrefixMatch,
    ReplicaId,
    RouteQuery,
    Rung,
)
from routing.value import value

KeysByBlockSize = Mapping[int, Sequence[BlockKey]]


@value
class Asked:
    """All that a decision about one request needs to know, besides the fleet's state.

    Attributes:
        choice: Its pool and its route.
        keys_by_block_size: The prompt's block keys once for each block size in the fleet.
        matches: What the index says of them.
        shared_tokens: Leading tokens of the prompt that the model's pool holds, as far as its own
            look-up says: what is left of a match whose replica is not believed.
        home_id: Who has what the request goes on with; None for nobody known.
    """

    choice: Choice
    prompt: Prompt
    session: bytes | None
    keys_by_block_size: KeysByBlockSize
    matches: Mapping[ReplicaId, PrefixMatch]
    shared_tokens: int = 0
    home_id: ReplicaId | None = None


@value
class Placement:
    """Where one request goes, and why, before anything is booked.

    Attributes:
        replica: Where.
        asked: What the decision knew; None for a request that only one replica can answer.
        decision: None likewise, and where no replica but the session's home may get requests.
        home: The replica that opened the request's session: tried first, whatever its load.
    """

    replica: ReplicaId
    asked: Asked | None = None
    decision: Decision | None = None
    home: ReplicaId | None = None

    @property
    def order(self) -> list[ReplicaId]:
        """Replicas to try, in order."""
        if self.decision is None:
            return [self.replica]
        order, home = self.decision.order, self.home
        return order if home is None else [home, *(other for other in order if other != home)]


def hash_specs(registry: Registry, model: Model, lora: str, cache_salt: str) -> list[HashSpec]:
    """Return what block keys depend on, once for every block size among a model's replicas."""
    sizes = {replica.block_size for replica in registry.of_model(model.key)} - {None}
    return [HashSpec(model.key, size, lora, cache_salt) for size in sizes if size]


@dataclass(slots=True)
class Placed:
    """A request with its lease, which moves when another replica is tried.

    Attributes:
        placement: Where it was to go first.
        prediction: What the index expects of the replica that has the lease since then.
    """

    lease: Lease
    placement: Placement
    prediction: Prediction | None = None

    def at(self, position: int) -> ReplicaId | None:
        """Return the replica to try at a position from 0 on; None where there is no other.

        The order beyond the first is worked out when it is asked for, which is nearly never.
        """
        if position == 0:
            return self.placement.replica
        order = self.placement.order
        return order[position] if position < len(order) else None

    @property
    def match(self) -> PrefixMatch:
        """What the replica that has the lease is expected to hold."""
        decision = self.placement.decision
        return NO_MATCH if decision is None else decision.match_of(self.lease.replica)

    def is_under_cap(self, replica: ReplicaId) -> bool:
        """Return whether a candidate may take one more request under its load cap."""
        decision = self.placement.decision
        return decision is not None and not decision.ranked_of(replica).over_cap


class Placer:
    """Decides and books.

    Args:
        registry: The replicas.
        book: Their loads.
        loads: The same, with those of other gateways.
        index: Learns of predicted holders.
        times: How long predictions live.
        rng: Breaks ties.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        registry: Registry,
        book: LoadBook,
        loads: Loads,
        index: PrefixIndex,
        times: IndexConfig,
        rng: Random,
        now: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._book = book
        self._loads = loads
        self._index = index
        self._times = times
        self.rng = rng
        self._now = now

    def choose(self, asked: Asked) -> Placement:
        """Say where a request would go now, and change nothing.

        Raises:
            NoEligibleReplica: As `decide`, and the request has no home.
        """
        home_id = self._home_id(asked)
        try:
            decision = self.decide(asked)
        except NoEligibleReplica:
            if home_id is None:
                raise
            return Placement(home_id, asked, None, home_id)
        return Placement(home_id or decision.replica, asked, decision, home_id)

    def decide(self, asked: Asked) -> Decision:
        """Decide between the replicas that may get a request.

        Raises:
            NoEligibleReplica: No replica of the pool is ready, or none has loaded the adapter that
                the request names.
        """
        model, name = asked.choice.model, asked.choice.offer.name
        # In this order: the only one that has an adapter gets its requests also when it is busy.
        replicas = self._registry.not_busy(model.able(self._registry.ready(model.key), name))
        if not replicas:
            states = self._registry.states(model.key)
            told = ", ".join(f"{number} {state}" for state, number in states.items())
            message = f"No replica of `{model.key}` is ready for `{name}`: {told or 'none known'}."
            raise NoEligibleReplica(message, states)
        now, matches = self._now(), self._believed(asked)
        candidates = [
            Candidate(
                replica=replica.replica_id,
                load=self._loads.snapshot(replica.replica_id, now),
                match=matches.get(replica.replica_id, NO_MATCH),
                weight=replica.weight,
            )
            for replica in replicas
        ]
        query = _query(asked, replicas, self._loads.num_gateways)
        return asked.choice.route.router.decide(query, candidates, self.rng)

    def place(self, asked: Asked) -> Placed:
        """Decide, and book the request on the chosen replica in the same step.

        Raises:
            NoEligibleReplica: As `choose`.
        """
        placement = self.choose(asked)
        asked.choice.model.num_routed += 1
        if placement.decision is not None:
            asked.choice.model.turn_by_policy[asked.choice.route.name] += 1
        # No wait since the decision: the chosen one is there.
        replica = self._registry[placement.replica]
        lease = self._book_asked(asked, replica)
        return Placed(lease, placement, self._predict(asked, replica))

    def follow(self, replica_id: ReplicaId) -> Placed:
        """Book a request that only this replica can answer, whatever its load."""
        lease = self._book.begin(replica_id, 0.0, 0, self._now())
        return Placed(lease, Placement(replica_id))

    def move(self, placed: Placed, replica: Replica) -> None:
        """Move a request's lease to another replica; to the same one changes nothing."""
        asked = placed.placement.asked
        if replica.replica_id != placed.lease.replica and asked is not None:
            self._book.end(placed.lease)
            self.refused(placed)
            placed.lease = self._book_asked(asked, replica)
            placed.prediction = self._predict(asked, replica)

    def refused(self, placed: Placed) -> None:
        """Take back what a request made the index expect: its replica did not run it."""
        if placed.prediction is not None:
            self._index.withdraw(placed.prediction)
            placed.prediction = None

    def _home_id(self, asked: Asked) -> ReplicaId | None:
        """Return the replica that comes first whatever its load, unless it is leaving or ill."""
        home = self._registry.get(asked.home_id or ReplicaId(""))
        if home is None or home.model_key != asked.choice.model.key or not home.keeps_sessions:
            return None
        return home.replica_id

    def _believed(self, asked: Asked) -> Mapping[ReplicaId, PrefixMatch]:
        """Return the matches that a decision may count on."""
        distrusted, unserved = self._registry.distrusted, self._registry.shared_distrusted
        if not distrusted and not unserved:
            return asked.matches
        matches = dict(asked.matches)
        for name in distrusted & matches.keys():
            matches[name] = self._without_own(matches[name], name, asked)
        for name in unserved & matches.keys():
            matches[name] = _without_shared(matches[name])
        return matches

    def _without_own(self, match: PrefixMatch, name: ReplicaId, asked: Asked) -> PrefixMatch:
        """Return what a replica may take from the pool that is not believed to hold anything.

        Where its own memory and a pool that only the index knows are mixed, what the pool has of
        the beginning cannot be told from the match, and counts for nothing.
        """
        if match.total_tokens == match.l2_tokens:
            return match
        block_size = self._registry[name].block_size if asked.shared_tokens else None
        if not block_size:
            return NO_MATCH
        num_tokens = asked.prompt.num_tokens
        return PrefixMatch(l2_tokens=taken_tokens(asked.shared_tokens, num_tokens, block_size))

    def _book_asked(self, asked: Asked, replica: Replica) -> Lease:
        replica_id = replica.replica_id
        match = self._believed(asked).get(replica_id, NO_MATCH)
        price = asked.choice.model.cost.usable(match, asked.prompt.num_tokens)
        return self._book.begin(replica_id, price.prefill_s, asked.prompt.num_tokens, self._now())

    def _predict(self, asked: Asked, replica: Replica) -> Prediction | None:
        keys = asked.keys_by_block_size.get(replica.block_size or 0, ())
        if not keys:
            return None
        times = self._times
        # Where events are cut off, nothing confirms a prediction until they can be replayed.
        is_told = replica.follows_events and not replica.misses_events
        ttl_s = times.predicted_ttl_s if is_told else times.eventless_ttl_s
        num_blocks = replica.facts.num_blocks
        match = asked.matches.get(replica.replica_id, NO_MATCH)
        num_held = match.l0_tokens // (replica.block_size or 1)
        return self._index.predict(replica.replica_id, keys, ttl_s, num_blocks, num_held)


def _without_shared(match: PrefixMatch) -> PrefixMatch:
    return PrefixMatch(match.l0_tokens, match.l1_tokens, 0, match.confirmed_tokens)


def _query(asked: Asked, replicas: Sequence[Replica], num_gateways: int) -> RouteQuery:
    prompt, session = asked.prompt, asked.session
    rung = Rung.HASHED if prompt.body.has_prompt else Rung.LOAD
    query = RouteQuery(
        num_prompt_tokens=prompt.num_tokens,
        rung=rung if prompt.packed_tokens is None else rung_of(replicas),
        session_key=None if session is None else int(xxh3_64_intdigest(session)),
        sequence=asked.choice.model.turn_by_policy[asked.choice.route.name],
        num_gateways=num_gateways,
    )
    if asked.choice.route.router.policy.can_rank(query):
        return query
    # Only now is it worth the time to make a key of the prompt's beginning.
    return replace(query, affinity_key=_affinity_key(asked))


def _affinity_key(asked: Asked) -> int | None:
    """Return what requests with the same beginning share: a block key, else a hash of bytes."""
    if asked.keys_by_block_size:
        # With several block sizes any one will do, as long as it is always the same.
        keys = asked.keys_by_block_size[min(asked.keys_by_block_size)]
        if keys:
            return keys[min(asked.choice.route.affinity_blocks, len(keys)) - 1]
    return asked.prompt.head_key()
