"""The replicas that we know, and which of them may get requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.config.guards import EjectionConfig
from gateway.kvevents.subscriber import Source
from gateway.proxy.transport import Origin
from routing.types import ReplicaId, Rung

# A queue that was full drains within seconds; a longer Retry-After is meant for clients.
MAX_BUSY_S = 5.0
# 2**10 times any sensible first ejection is over the longest one.
_MAX_DOUBLINGS = 10


class ReplicaState(StrEnum):
    """Whether a replica may get requests."""

    STARTING = "starting"  # not yet seen healthy
    READY = "ready"
    EJECTED = "ejected"  # it was ready and does not answer
    DRAINING = "draining"  # its platform wants no new requests there: it is going, or not well
    GONE = "gone"  # no discovery names it any more


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of a replica's /v1/models."""

    name: str
    parent: str | None = None  # the base model, where this is a LoRA adapter
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What a replica says about itself.

    Attributes:
        models: What it serves; the base model first.
        block_size: Tokens a KV block; None where it does not say.
        num_blocks: Blocks that fit its GPU memory; None where it does not say.
        started_at: Its process's start, in seconds of its own clock; tells a restart.
        kv_events: Where it publishes KV events; None where it does not.
    """

    models: tuple[ServedModel, ...] = ()
    block_size: int | None = None
    num_blocks: int | None = None
    started_at: float | None = None
    kv_events: Source | None = None


@dataclass(slots=True, eq=False)
class Replica:
    """One running engine with its own KV cache and address.

    Attributes:
        replica_id: Its name everywhere.
        model_key: The model pool that it belongs to (`gateway.models.Model.key`).
        url: Where it listens, without a path.
        state: Whether it may get requests.
        state_reason: Why, in one word for metrics and logs.
        since: When the state began, monotonic seconds.
        facts: What it last said about itself.
        follows_events: Whether its KV events are being read: then its entries are precise.
        wanted: Whether its platform wants requests there; no probe makes it ready otherwise.
        busy_until: It said 429 or 503; until then others are asked first, monotonic seconds.
        num_failures: Failed requests in a row.
        num_ejections: Ejections in a row without a good request in between.
        ejected_until: No probe brings it back before this, monotonic seconds.
    """

    replica_id: ReplicaId
    model_key: str
    url: str
    origin: Origin
    upstream_key: str | None = None
    configured_block_size: int | None = None
    configured_events: Source | None = None
    read_events: bool = True
    state: ReplicaState = ReplicaState.STARTING
    state_reason: str = "not_probed"
    since: float = 0.0
    facts: ReplicaFacts = field(default_factory=ReplicaFacts)
    follows_events: bool = False
    wanted: bool = True
    busy_until: float = 0.0
    num_failures: int = 0
    num_ejections: int = 0
    ejected_until: float = 0.0

    @property
    def block_size(self) -> int | None:
        """Tokens a KV block: as configured, else as the replica says."""
        return self.configured_block_size or self.facts.block_size

    @property
    def kv_events(self) -> Source | None:
        """Where to subscribe: as configured, else as the replica says; None for nowhere."""
        return (self.configured_events or self.facts.kv_events) if self.read_events else None


class Registry:
    """All known replicas.

    Args:
        replicas: Those to begin with.
        ejection: When failed requests take a replica out, and for how long.
        now: Monotonic seconds.
        on_change: Told of every change of a replica's state, after it.
    """

    def __init__(
        self,
        replicas: Iterable[Replica],
        ejection: EjectionConfig,
        now: Callable[[], float],
        on_change: Callable[[Replica], None],
    ) -> None:
        self._replica_by_id: dict[ReplicaId, Replica] = {}
        self._replicas_by_model: dict[str, list[Replica]] = {}
        self._ejection = ejection
        self._now = now
        self._on_change = on_change
        for replica in replicas:
            self.add(replica)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replica_by_id.values())

    def __getitem__(self, replica_id: ReplicaId) -> Replica:
        return self._replica_by_id[replica_id]

    def get(self, replica_id: ReplicaId) -> Replica | None:
        """Return a replica, or None where it is gone."""
        return self._replica_by_id.get(replica_id)

    def add(self, replica: Replica) -> None:
        """Take a replica in; its id must be new."""
        replica.since = self._now()
        self._replica_by_id[replica.replica_id] = replica
        self._replicas_by_model.setdefault(replica.model_key, []).append(replica)

    def remove(self, replica: Replica) -> None:
        """Let a replica go. Requests that it still answers end by themselves."""
        del self._replica_by_id[replica.replica_id]
        self._replicas_by_model[replica.model_key].remove(replica)
        self.set_state(replica, ReplicaState.GONE, "not_discovered")

    def of_model(self, model_key: str) -> Sequence[Replica]:
        """Return all replicas of a model, in any state."""
        return self._replicas_by_model.get(model_key, ())

    def eligible(self, model_key: str) -> list[Replica]:
        """Return the replicas of a model that may get a request now.

        Those that just said they are too busy are left out as long as there are others.
        """
        now = self._now()
        ready = [r for r in self.of_model(model_key) if r.state is ReplicaState.READY]
        return [r for r in ready if r.busy_until <= now] or ready

    def succeeded(self, replica: Replica) -> None:
        """A request was answered, with whatever status: the replica works."""
        replica.num_failures = 0
        replica.num_ejections = 0

    def failed(self, replica: Replica, reason: str, *, certain: bool = False) -> None:
        """A request failed for the replica's fault; enough of them in a row eject it.

        Args:
            replica: Which.
            reason: In one word.
            certain: One is enough: nobody listens there.
        """
        if replica.state is ReplicaState.EJECTED:
            return  # one crash breaks many requests, and must not eject once for each
        replica.num_failures += 1
        on_probation = replica.num_ejections > 0
        if certain or on_probation or replica.num_failures >= self._ejection.failures:
            backoff_s = self._ejection.base_s * 2**replica.num_ejections
            replica.ejected_until = self._now() + min(self._ejection.max_s, backoff_s)
            replica.num_ejections = min(replica.num_ejections + 1, _MAX_DOUBLINGS)
            replica.num_failures = 0
            self.set_state(replica, ReplicaState.EJECTED, reason)

    def busy(self, replica: Replica, for_s: float) -> None:
        """A replica said that it takes no more: ask others first for a while."""
        replica.busy_until = self._now() + min(for_s, MAX_BUSY_S)

    def is_free(self, replica_id: ReplicaId) -> bool:
        """Return whether a replica is there and did not say a moment ago that it takes no more."""
        replica = self._replica_by_id.get(replica_id)
        return replica is not None and replica.busy_until <= self._now()

    def probed_well(self, replica: Replica) -> None:
        """A probe went well: the replica is ready, unless it was ejected a moment ago."""
        if replica.wanted and self._now() >= replica.ejected_until:
            self.set_state(replica, ReplicaState.READY, "healthy")

    def set_state(self, replica: Replica, state: ReplicaState, reason: str) -> None:
        """Move a replica to a state; the same state again only updates the reason."""
        changed = replica.state is not state
        replica.state_reason = reason
        if changed:
            replica.state = state
            replica.since = self._now()
            self._on_change(replica)


def rung_of(replicas: Iterable[Replica]) -> Rung:
    """Return how exactly the caches of these replicas are known: by events, or by history."""
    followed = all(replica.follows_events for replica in replicas)
    return Rung.PRECISE if followed else Rung.PREDICTED
