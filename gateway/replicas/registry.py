"""The replicas that we know, and which of them may get requests."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from gateway.config.guards import EjectionConfig
from gateway.replicas.instructions import Instruction, Instructions, Topic
from gateway.replicas.replica import Change, Replica
from gateway.replicas.state import ELSEWHERE, Hold, ReplicaState, standing
from routing.trust import Silence, Trust
from routing.types import ReplicaId, Rung

# A queue that was full drains within seconds; a longer Retry-After is meant for clients.
MAX_BUSY_S = 5.0
# 2**10 times any sensible first ejection is over the longest one.
_MAX_DOUBLINGS = 10
# What operators look back at: a rollout of a large fleet is a hundred departures.
MAX_DEPARTURES = 100

__all__ = ["Departure", "Registry", "Replica", "ReplicaState", "rung_of"]


@dataclass(frozen=True, slots=True)
class Departure:
    """A replica that left, for operators.

    Attributes:
        was: Its state until then.
        reason: Why it left, in one word.
        at: When, monotonic seconds.
    """

    replica_id: ReplicaId
    model_key: str
    url: str
    was: ReplicaState
    reason: str
    at: float


class Registry:
    """All known replicas.

    Args:
        replicas: Those to begin with.
        ejection: When failed requests take a replica out, and for how long.
        now: Monotonic seconds.
        on_change: Told of every change of a replica's state, after it.

    Attributes:
        ejection: As given; a reload puts another one in its place.
        instructions: What operators said; they outlive their replicas.
        departures: Replicas that left, oldest first.
        distrusted: Those that do not hold what they are believed to hold, by their own word.
        shared_distrusted: Those that the shared pool does not serve, likewise.
        gateway: This gateway's id, where there are several; it stands with holds given here.
        on_instruction: Told of what an operator said here, after it, also where that is no news
            here: it may be the answer to what was said elsewhere a moment ago.
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
        self.ejection = ejection
        self._now = now
        self._on_change = on_change
        self.instructions = Instructions()
        self.departures: deque[Departure] = deque(maxlen=MAX_DEPARTURES)
        self.distrusted: set[ReplicaId] = set()
        self.shared_distrusted: set[ReplicaId] = set()
        self.gateway = ""
        self.on_instruction: Callable[[ReplicaId, Topic], None] | None = None
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
        replica.changes.append(Change(replica.state, replica.state_reason, replica.since))
        self._replica_by_id[replica.replica_id] = replica
        self.instructions.joined(replica.replica_id)
        self._replicas_by_model.setdefault(replica.model_key, []).append(replica)
        self._follow_instruction(replica)

    def begin_anew(self, replica: Replica) -> None:
        """Forget what a replica said of its cache: its engine is a new process."""
        replica.trust, replica.silence, replica.tells_cached = Trust(), Silence(), False
        self.distrusted.discard(replica.replica_id)
        self.shared_distrusted.discard(replica.replica_id)
        replica.judge_events()

    def remove(self, replica: Replica) -> None:
        """Let a replica go. Requests that it still answers end by themselves."""
        del self._replica_by_id[replica.replica_id]
        self.distrusted.discard(replica.replica_id)
        self.shared_distrusted.discard(replica.replica_id)
        self._replicas_by_model[replica.model_key].remove(replica)
        self.instructions.left(replica.replica_id)
        was = replica.state
        self._settle(replica)
        self.departures.append(
            Departure(
                replica_id=replica.replica_id,
                model_key=replica.model_key,
                url=replica.url,
                was=was,
                reason=replica.state_reason,
                at=replica.since,
            )
        )

    def of_model(self, model_key: str) -> Sequence[Replica]:
        """Return all replicas of a model, in any state."""
        return self._replicas_by_model.get(model_key, ())

    def eligible(self, model_key: str) -> list[Replica]:
        """Return the replicas of a model that may get a request for its base model now."""
        return self.not_busy(self.ready(model_key))

    def ready(self, model_key: str) -> list[Replica]:
        """Return the replicas of a model that nobody took out, busy or not."""
        return [r for r in self.of_model(model_key) if r.state is ReplicaState.READY]

    def not_busy(self, replicas: list[Replica]) -> list[Replica]:
        """Leave out replicas that just said they are too busy, as long as there are others."""
        now = self._now()
        return [r for r in replicas if r.busy_until <= now] or replicas

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
        if replica.fault is not None:
            return  # one crash breaks many requests, and must not eject once for each
        replica.num_failures += 1
        on_probation = replica.num_ejections > 0
        if certain or on_probation or replica.num_failures >= self.ejection.failures:
            backoff_s = self.ejection.base_s * 2**replica.num_ejections
            replica.ejected_until = self._now() + min(self.ejection.max_s, backoff_s)
            replica.num_ejections = min(replica.num_ejections + 1, _MAX_DOUBLINGS)
            replica.num_failures = 0
            replica.fault = reason
            self._settle(replica)

    def failed_elsewhere(self, replica: Replica, until: float) -> None:
        """Other gateways ejected a replica; the last ready one of its model stays.

        Args:
            replica: Which.
            until: No probe of ours brings it back before this, monotonic seconds. 0: one that is
                good will do.
        """
        if replica.fault is None and replica.state is ReplicaState.READY:
            of_model = self.of_model(replica.model_key)
            if any(r is not replica and r.state is ReplicaState.READY for r in of_model):
                replica.fault = ELSEWHERE
                self._settle(replica)
        if replica.fault == ELSEWHERE:
            replica.ejected_until = max(replica.ejected_until, until)

    def busy(self, replica: Replica, for_s: float) -> None:
        """A replica said that it takes no more: ask others first for a while."""
        replica.busy_until = self._now() + min(for_s, MAX_BUSY_S)

    def is_free(self, replica_id: ReplicaId) -> bool:
        """Return whether a replica is ready and did not say a moment ago that it takes no more."""
        replica = self._replica_by_id.get(replica_id)
        if replica is None or replica.state is not ReplicaState.READY:
            return False
        return replica.busy_until <= self._now()

    def probed_well(self, replica: Replica) -> None:
        """A probe went well: the replica answers, unless it was ejected a moment ago."""
        if self._now() >= replica.ejected_until:
            replica.fault = None
            self._settle(replica)

    def probed_badly(self, replica: Replica, problem: str, *, enough: bool) -> None:
        """A probe went wrong.

        Args:
            replica: Which.
            problem: In one word.
            enough: As many in a row as take a ready replica out. Others have no such patience:
                nobody waits for them.
        """
        if enough or replica.state is not ReplicaState.READY:
            replica.fault = problem
            self._settle(replica)

    def want(self, replica: Replica, *, wanted: bool) -> None:
        """Note whether a replica's platform wants requests there."""
        replica.wanted = wanted
        self._settle(replica)

    def hold(self, replica_id: ReplicaId, state: ReplicaState, note: str) -> bool:
        """Let a replica get no new requests, until `release`, whether it is there or not.

        Args:
            replica_id: Which; see `knows`.
            state: CORDONED or DRAINING; takes the place of the hold before.
            note: The operator's reason; empty keeps the one before.

        Returns:
            Whether that is news.
        """
        said = self.instructions.of(replica_id)
        before = said.hold
        note = note or (before.note if before is not None else "")
        is_news = before is None or (before.state, before.note) != (state, note)
        hold = Hold(state, note, self._now(), self.gateway) if is_news else before
        self._instruct(replica_id, Topic.HOLD, replace(said, hold=hold))
        return is_news

    def release(self, replica_id: ReplicaId) -> bool:
        """End a hold. The replica is ready at once if it answers, else as soon as it does.

        Returns:
            Whether there was one.
        """
        said = self.instructions.of(replica_id)
        self._instruct(replica_id, Topic.HOLD, replace(said, hold=None))
        return said.hold is not None

    def weigh(self, replica_id: ReplicaId, weight: float | None) -> bool:
        """Give a replica a weight in the place of its configured one; None ends that.

        Returns:
            Whether that is news.
        """
        said = self.instructions.of(replica_id)
        self._instruct(replica_id, Topic.WEIGHT, replace(said, weight=weight))
        return said.weight != weight

    def knows(self, replica_id: ReplicaId) -> bool:
        """Return whether an operator may speak of this id: it is there, or was a while ago."""
        return replica_id in self.ids()

    def ids(self) -> Set[ReplicaId]:
        """Return all ids that operators may speak of."""
        departed = {departure.replica_id for departure in self.departures}
        return self._replica_by_id.keys() | self.instructions.absent().keys() | departed

    def states(self, model_key: str) -> Mapping[str, int]:
        """Return how many of a model's replicas are in each state that some are in."""
        counts = Counter(replica.state for replica in self.of_model(model_key))
        return {state.value: counts[state] for state in ReplicaState if counts[state]}

    def configure(self, replica: Replica, fresh: Replica) -> bool:
        """Take over what another configuration says of a replica that is there.

        Args:
            replica: The one that is there.
            fresh: The same one, as the new configuration makes it.

        Returns:
            Whether its cache entries count otherwise from now on; see `Replica.configure`.
        """
        changed = replica.configure(fresh)
        self._follow_instruction(replica)
        return changed

    def instructed(self, replica_id: ReplicaId, instruction: Instruction) -> None:
        """Take what an operator said to another gateway about a replica, here or not."""
        replica = self._replica_by_id.get(replica_id)
        self.instructions.put(replica_id, instruction, present=replica is not None)
        if replica is not None:
            self._follow_instruction(replica)

    def _instruct(self, replica_id: ReplicaId, topic: Topic, instruction: Instruction) -> None:
        self.instructed(replica_id, instruction)
        if self.on_instruction is not None:
            self.on_instruction(replica_id, topic)

    def _follow_instruction(self, replica: Replica) -> None:
        said = self.instructions.of(replica.replica_id)
        replica.hold = said.hold
        replica.weight = replica.configured_weight if said.weight is None else said.weight
        self._settle(replica)

    def _settle(self, replica: Replica) -> None:
        """Bring a replica into the state that all that is known of it says."""
        now = standing(
            known=self._replica_by_id.get(replica.replica_id) is replica,
            hold=replica.hold,
            wanted=replica.wanted,
            was_ready=replica.was_ready,
            fault=replica.fault,
        )
        replica.state_reason = now.reason
        replica.was_ready |= now.state is ReplicaState.READY
        if now.state is not replica.state:
            replica.state, replica.since = now.state, self._now()
            replica.changes.append(Change(now.state, now.reason, replica.since))
            self._on_change(replica)


def rung_of(replicas: Iterable[Replica]) -> Rung:
    """Return how exactly the caches of these replicas are known: by events, or by history."""
    followed = all(replica.follows_events for replica in replicas)
    return Rung.PRECISE if followed else Rung.PREDICTED
