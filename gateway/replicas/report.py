"""Replicas as operators see them: for the status page, the admin API and its command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.replicas.facts import ReplicaFacts
from gateway.replicas.instructions import Instruction
from gateway.replicas.others import Others
from gateway.replicas.registry import Registry, Replica
from gateway.replicas.state import Hold, ReplicaState
from routing.load import LoadBook, Loads
from routing.types import ReplicaId


class FleetReport:
    """Tells what is known of replicas, as JSON. Reads only.

    Times are told as seconds ago: clocks of machines differ.

    Args:
        registry: The replicas.
        book: What this gateway has there.
        loads: What all gateways have there.
        now: Monotonic seconds.
        others: The other gateways; None where there are none.
    """

    def __init__(
        self,
        registry: Registry,
        book: LoadBook,
        loads: Loads,
        now: Callable[[], float],
        others: Others | None = None,
    ) -> None:
        self._others = others
        self._registry = registry
        self._book = book
        self._loads = loads
        self._now = now

    def fleet(self) -> dict[str, Any]:
        """Return all replicas, those that left, and what was said about replicas that left."""
        instructions = self._registry.instructions
        return {
            "replicas": [self.replica(replica) for replica in self._registry],
            "gone": [
                {
                    "id": departure.replica_id,
                    "model": departure.model_key,
                    "url": departure.url,
                    "was": departure.was,
                    "reason": departure.reason,
                    "ago_s": self._ago(departure.at),
                }
                for departure in reversed(self._registry.departures)
            ],
            "absent": [self._absent(*item) for item in instructions.absent().items()],
            "forgotten_instructions": instructions.num_forgotten,
        }

    def one(self, replica_id: ReplicaId) -> dict[str, Any]:
        """Return one replica with its history; of one that left, what was said about it."""
        replica = self._registry.get(replica_id)
        if replica is None:
            return self._absent(replica_id, self._registry.instructions.of(replica_id))
        return {
            **self.replica(replica),
            "changes": [
                {"state": change.state, "reason": change.reason, "ago_s": self._ago(change.at)}
                for change in reversed(replica.changes)
            ],
        }

    def replica(self, replica: Replica) -> dict[str, Any]:
        """Return one replica as it is now."""
        now = self._now()
        load = self._book.snapshot(replica.replica_id, now)
        of_all = self._loads.snapshot(replica.replica_id, now).in_flight
        return {
            "id": replica.replica_id,
            "model": replica.model_key,
            "url": replica.url,
            "state": replica.state.value,
            "reason": replica.state_reason,
            "for_s": self._ago(replica.since),
            "alive": replica.fault is None,
            "fault": replica.fault,
            "hold": self._hold(replica.hold),
            "weight": replica.weight,
            "configured_weight": replica.configured_weight,
            "in_flight": load.in_flight,
            "fleet_in_flight": of_all,
            "drained": (
                replica.state is ReplicaState.DRAINING
                and self.is_idle(replica.replica_id, replica.since)
            ),
            "outstanding_prefill_s": round(load.prefill_s, 3),
            "block_size": replica.block_size,
            "follows_events": replica.follows_events,
            "rank": replica.rank,
            "shared_address": replica.shared_address,
            "contradictions": {c.fact: c.text for c in replica.contradictions},
            **_facts(replica.facts),
        }

    def is_idle(self, replica_id: ReplicaId, held_since: float) -> bool:
        """Return whether no gateway has a request at a replica that is held, and all said so."""
        if self._others is not None and not self._others.answered(held_since):
            return False  # one of them may have something there, or send it there yet
        return self._loads.snapshot(replica_id, self._now()).in_flight == 0

    def _absent(self, replica_id: ReplicaId, said: Instruction) -> dict[str, Any]:
        return {
            "id": replica_id,
            "state": ReplicaState.GONE.value,
            "hold": self._hold(said.hold),
            "weight": said.weight,
            "in_flight": 0,
        }

    def _hold(self, hold: Hold | None) -> dict[str, Any] | None:
        if hold is None:
            return None
        told = {"state": hold.state.value, "reason": hold.note, "for_s": self._ago(hold.since)}
        return told | {"by": hold.by} if hold.by else told

    def _ago(self, at: float) -> float:
        return round(self._now() - at, 1)


def _facts(facts: ReplicaFacts) -> dict[str, Any]:
    return {
        "num_blocks": facts.num_blocks,
        "max_model_len": facts.max_model_len,
        "models": [model.name for model in facts.models],
        "version": facts.version,
        "hash_algorithm": facts.hash_algorithm,
        "ranks": list(facts.ranks),
    }
