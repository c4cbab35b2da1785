"""What operators said about replicas: holds and weights, by replica id.

They outlive the replica: a pod that restarts, or a discovery that loses it for a moment, must not
put a replica back to work that somebody took out. They outlive the gateway's process where several
gateways share them (gateway/shared/holds.py), and else do not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum

from gateway.replicas.state import Hold
from routing.types import ReplicaId

# Of replicas that left; then the one that left first is forgotten, and that is counted. By number
# and not by time: a node may be under repair for weeks. Pods with new names each time leave one
# behind whenever they go while they are held, and a thousand of these are 0.2 MB.
MAX_ABSENT = 1000


class Topic(StrEnum):
    """What an operator's word is about; a word about one leaves the other as it is."""

    HOLD = "hold"
    WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class Instruction:
    """What operators said about one replica.

    Attributes:
        hold: That it gets no new requests.
        weight: In place of the configured one.
    """

    hold: Hold | None = None
    weight: float | None = None


NOTHING = Instruction()


class Instructions:
    """Instructions by replica id: of all replicas that are there, and of some that left.

    Attributes:
        num_forgotten: Instructions lost because too many replicas with some had left.
    """

    def __init__(self) -> None:
        self._by_id: dict[ReplicaId, Instruction] = {}
        self._absent: OrderedDict[ReplicaId, None] = OrderedDict()
        self.num_forgotten = 0

    def of(self, replica_id: ReplicaId) -> Instruction:
        """Return what was said about a replica; `NOTHING` for most."""
        return self._by_id.get(replica_id, NOTHING)

    def ids(self) -> Set[ReplicaId]:
        """Return the replicas of which something was said."""
        return self._by_id.keys()

    def has(self, replica_id: ReplicaId) -> bool:
        """Return whether something was said about a replica."""
        return replica_id in self._by_id

    def absent(self) -> Mapping[ReplicaId, Instruction]:
        """Return what was said about replicas that left, in the order in which they did."""
        return {replica_id: self._by_id[replica_id] for replica_id in self._absent}

    def put(self, replica_id: ReplicaId, instruction: Instruction, *, present: bool) -> None:
        """Keep an instruction in the place of the one before.

        Args:
            replica_id: Whose.
            instruction: `NOTHING` ends what was said.
            present: Whether the replica is there.
        """
        if instruction == NOTHING:
            self._by_id.pop(replica_id, None)
            self._absent.pop(replica_id, None)
            return
        self._by_id[replica_id] = instruction
        if not present:
            self.left(replica_id)

    def joined(self, replica_id: ReplicaId) -> Instruction:
        """Note that a replica is there; return what was said about it."""
        self._absent.pop(replica_id, None)
        return self.of(replica_id)

    def left(self, replica_id: ReplicaId) -> None:
        """Note that a replica left."""
        if replica_id not in self._by_id or replica_id in self._absent:
            return
        self._absent[replica_id] = None
        if len(self._absent) > MAX_ABSENT:
            oldest, _ = self._absent.popitem(last=False)
            del self._by_id[oldest]
            self.num_forgotten += 1
