"""Draws a pool where several serve the name that a request asks for (docs/adr/0014)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from xxhash import xxh3_64_intdigest

from gateway.models import Choice, Model, Offer
from gateway.proxy.headers import Header
from gateway.replicas.registry import Registry
from routing.policies.base import rendezvous_distance
from routing.types import ReplicaId
from routing.weights import stretched


class Sharing:
    """Shares the requests for a name among its pools.

    Args:
        registry: Tells which pools have a replica that can answer.
        rng: Draws for requests without a session.
    """

    def __init__(self, registry: Registry, rng: Random) -> None:
        self._registry = registry
        self._rng = rng

    def choose(
        self, offer: Offer, headers: Sequence[Header], home: ReplicaId | None = None
    ) -> Choice:
        """Return the pool that takes a request.

        The only open one, whatever its state. Of several: the one whose replica has what the
        request goes on with; else the first that can answer, in an order drawn by weight.

        Args:
            offer: The pools.
            headers: May name a session.
            home: See `gateway.stored.Stored.home`.
        """
        if len(offer.open) == 1:
            pool = offer.open[0]
            return Choice(offer, pool, offer.route(pool))
        kept = self._pool_of(home, offer)
        if kept is not None:
            return Choice(offer, kept, offer.route(kept))
        drawn = in_order(offer.open, self._key(offer, headers))
        pool = next((pool for pool in drawn if self._can_answer(pool, offer.name)), drawn[0])
        return Choice(offer, pool, offer.route(pool), None if pool is drawn[0] else drawn[0])

    def _pool_of(self, home: ReplicaId | None, offer: Offer) -> Model | None:
        """Return the pool of a replica, while that lives."""
        replica = self._registry.get(home or ReplicaId(""))
        if replica is None or not replica.keeps_sessions:
            return None
        return next((pool for pool in offer.open if pool.key == replica.model_key), None)

    def _key(self, offer: Offer, headers: Sequence[Header]) -> int:
        # Pools may have policies with different session headers; whichever is there will do.
        sessions = (offer.route(pool).session(headers) for pool in offer.open)
        session = next((session for session in sessions if session is not None), None)
        return self._rng.getrandbits(64) if session is None else int(xxh3_64_intdigest(session))

    def _can_answer(self, pool: Model, name: str) -> bool:
        return bool(pool.able(self._registry.ready(pool.key), name))


def in_order(pools: Sequence[Model], key: int) -> list[Model]:
    """Return pools in the order in which a key falls on them; each is first by its weight's share.

    The same on every gateway. A pool that comes, goes or changes its weight moves only keys to or
    from itself.

    Args:
        pools: With weights above 0.
        key: 64 bits, of a session or random.
    """

    def distance(pool: Model) -> float:
        return stretched(rendezvous_distance(key, ReplicaId(pool.key)), pool.weight)

    return sorted(pools, key=distance)
