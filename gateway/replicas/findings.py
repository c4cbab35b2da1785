"""Tells operators what is wrong with what replicas say: once when it begins, once when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from gateway.observability.logging import EventLog
from gateway.replicas.contradictions import Contradiction, Fact, Usual, contradictions, usual
from gateway.replicas.discovery.base import Found
from gateway.replicas.facts import ReplicaFacts
from gateway.replicas.registry import Registry, Replica
from gateway.replicas.shared_address import SharedAddress
from routing.types import ReplicaId

CURE_BY_SHARED_ADDRESS: Mapping[SharedAddress, str] = {
    SharedAddress.ENGINES: "several engines answer at this address, so which one gets a prompt is "
    "chance; use discovery `kubernetes`, or `dns` with a headless service, or list each engine",
    SharedAddress.ADDRESSES: "this host name has several addresses, so which engine gets a prompt "
    "is chance; use discovery `dns` with this name, or list each address",
}
"""What is wrong with a shared address, and what to do about it."""


class Findings:
    """Compares what replicas say with the configuration and with each other.

    Args:
        registry: The replicas.
        names_of: Returns what the configuration calls a model, by its key.
        log: Gets one line when a problem begins and one when it ends.
    """

    def __init__(
        self, registry: Registry, names_of: Callable[[str], Set[str]], log: EventLog
    ) -> None:
        self._registry = registry
        self._names_of = names_of
        self._log = log
        self._facts_by_replica: dict[ReplicaId, tuple[ReplicaFacts, int | None, str | None]] = {}
        self._shared_by_replica: dict[ReplicaId, SharedAddress] = {}
        self._usual_by_model: dict[str, Usual] = {}

    def learned(self, replica: Replica) -> None:
        """Look again after a replica's facts were read; costs nothing where they are the same."""
        self._look_at_address(replica)
        facts = (replica.facts, replica.events_block_size, replica.events_problem)
        if self._facts_by_replica.get(replica.replica_id) != facts:
            self._facts_by_replica[replica.replica_id] = facts
            self._compare(replica.model_key, replica)

    def configured(self) -> None:
        """Look again at all replicas after the configuration changed."""
        self._usual_by_model.clear()
        for model_key in {replica.model_key for replica in self._registry}:
            self._compare(model_key, None)

    def left(self, replica: Replica) -> None:
        """Forget a replica that is gone; the others may differ from another one now."""
        self._shared_by_replica.pop(replica.replica_id, None)
        if self._facts_by_replica.pop(replica.replica_id, None) is not None:
            self._compare(replica.model_key, None)

    def refused(self, model_key: str, found: Found, owner: Replica) -> None:
        """Tell that a pool's discovery found what is a replica of another pool already."""
        self._log.warning(
            "replica_refused",
            url=found.url,
            model=model_key,
            owner=owner.model_key,
            problem="two pools find this address, and the first one keeps it; change one of their "
            "discoveries, or make them one entry with aliases",
        )

    def _look_at_address(self, replica: Replica) -> None:
        before = self._shared_by_replica.get(replica.replica_id)
        now = replica.shared_address
        if now is before:
            return
        fields = {"replica": replica.replica_id, "url": replica.url}
        if now is None:
            del self._shared_by_replica[replica.replica_id]
            self._log.info("replica_shared_address_ended", **fields)
        else:
            self._shared_by_replica[replica.replica_id] = now
            cure = CURE_BY_SHARED_ADDRESS[now]
            self._log.warning("replica_shared_address", **fields, found=now.value, problem=cure)

    def _compare(self, model_key: str, learned: Replica | None) -> None:
        """Compare what one replica says, or all where what is usual among them has changed."""
        replicas = self._registry.of_model(model_key)
        others = usual(replicas)
        if others != self._usual_by_model.get(model_key):
            self._usual_by_model[model_key] = others
            changed = replicas
        else:
            changed = [learned] if learned is not None else []
        names = self._names_of(model_key)
        for replica in changed:
            self._note(replica, contradictions(replica, names, others))

    def _note(self, replica: Replica, found: tuple[Contradiction, ...]) -> None:
        before, now = _by_fact(replica.contradictions), _by_fact(found)
        replica.contradictions = found
        for fact in before.keys() - now.keys():
            fields = {"replica": replica.replica_id, "fact": fact.value}
            self._log.info("replica_contradiction_ended", **fields)
        for fact, contradiction in now.items():
            if before.get(fact) != contradiction:
                fields = {"replica": replica.replica_id, "fact": fact.value}
                self._log.warning("replica_contradiction", **fields, problem=contradiction.text)


def _by_fact(found: tuple[Contradiction, ...]) -> dict[Fact, Contradiction]:
    return {contradiction.fact: contradiction for contradiction in found}
