"""From what is known about a request to a decision and a lease, in one step without a wait.

Between the snapshot of the loads and the new lease nothing else may run, or 200 requests that
arrive at once would all see the same idle replica (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from xxhash import xxh3_64_intdigest

from gateway.config.models import IndexConfig
from gateway.errors import NoEligibleReplica
from gateway.index.base import PrefixIndex
from gateway.models import Model, Route
from gateway.prompt.prepare import Prompt
from gateway.proxy.headers import Header, first
from gateway.replicas.registry import Registry, Replica, rung_of
from routing.hashing import HashSpec
from routing.load import Lease, LoadBook
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

KeysByBlockSize = Mapping[int, Sequence[BlockKey]]


@dataclass(frozen=True, slots=True)
class Asked:
    """All that a decision about one request needs to know, besides the fleet's state.

    Attributes:
        keys_by_block_size: The prompt's block keys once for each block size in the fleet.
        matches: What the index says of them.
    """

    model: Model
    route: Route
    prompt: Prompt
    session: bytes | None
    keys_by_block_size: KeysByBlockSize
    matches: Mapping[ReplicaId, PrefixMatch]


def prompt_keys(
    registry: Registry, model: Model, prompt: Prompt, lora: str, cache_salt: str
) -> KeysByBlockSize:
    """Return a prompt's block keys for every block size among a model's replicas."""
    if prompt.packed_tokens is None:
        return {}
    sizes = {replica.block_size for replica in registry.of_model(model.key)} - {None}
    return {
        size: prompt.keys(HashSpec(model.key, size, lora, cache_salt)) for size in sizes if size
    }


def session_of(route: Route, headers: Sequence[Header]) -> bytes | None:
    """Return the session that a request's header names, or None."""
    return first(headers, route.session_header) or None


class Placer:
    """Decides and books.

    Args:
        registry: The replicas.
        book: Their loads.
        index: Learns of predicted holders.
        times: How long predictions live.
        rng: Breaks ties.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        registry: Registry,
        book: LoadBook,
        index: PrefixIndex,
        times: IndexConfig,
        rng: Random,
        now: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._book = book
        self._index = index
        self._times = times
        self._rng = rng
        self._now = now

    def decide(self, asked: Asked) -> Decision:
        """Decide where a request would go now, and change nothing.

        Raises:
            NoEligibleReplica: Every replica of the model is starting, ejected or gone.
        """
        replicas = self._registry.eligible(asked.model.key)
        if not replicas:
            raise NoEligibleReplica(f"No replica of `{asked.model.key}` is ready.")
        now = self._now()
        candidates = [
            Candidate(
                replica=replica.replica_id,
                load=self._book.snapshot(replica.replica_id, now),
                match=asked.matches.get(replica.replica_id, NO_MATCH),
            )
            for replica in replicas
        ]
        return asked.route.router.decide(_query(asked, replicas), candidates, self._rng)

    def place(self, asked: Asked) -> tuple[Decision, Lease]:
        """Decide, and book the request on the chosen replica in the same step.

        Raises:
            NoEligibleReplica: As `decide`.
        """
        decision = self.decide(asked)
        asked.model.num_routed += 1
        return decision, self.book(asked, decision.replica)

    def book(self, asked: Asked, replica_id: ReplicaId) -> Lease:
        """Book a request on a replica; also for the next one after a failed try."""
        replica = self._registry[replica_id]
        match = asked.matches.get(replica_id, NO_MATCH)
        price = asked.model.cost.usable(match, asked.prompt.num_tokens)
        times = self._times
        ttl_s = times.predicted_ttl_s if replica.follows_events else times.eventless_ttl_s
        keys = asked.keys_by_block_size.get(replica.block_size or 0, ())
        self._index.predict(replica_id, keys, ttl_s)
        return self._book.begin(replica_id, price.prefill_s, asked.prompt.num_tokens, self._now())


def _query(asked: Asked, replicas: Sequence[Replica]) -> RouteQuery:
    prompt = asked.prompt
    affinity_key = prompt.head_key
    rung = Rung.LOAD if affinity_key is None else Rung.HASHED
    if prompt.packed_tokens is not None:
        rung = rung_of(replicas)
        affinity_key = _affinity_key(asked) or prompt.head_key
    session = asked.session
    return RouteQuery(
        num_prompt_tokens=prompt.num_tokens,
        rung=rung,
        affinity_key=affinity_key,
        session_key=None if session is None else int(xxh3_64_intdigest(session)),
        sequence=asked.model.num_routed,
    )


def _affinity_key(asked: Asked) -> int | None:
    """Return the key of the last block of the prompt's beginning; None below one full block."""
    if not asked.keys_by_block_size:
        return None
    # With several block sizes any one will do, as long as it is always the same.
    keys = asked.keys_by_block_size[min(asked.keys_by_block_size)]
    return keys[min(asked.route.affinity_blocks, len(keys)) - 1] if keys else None
