"""What a discovery is: a source of full snapshots.

Level-triggered: each snapshot names every replica there is, so an event that was lost, doubled or
late heals with the next one, and nobody has to keep a history. A new kind is one file, one row in
`gateway/replicas/discovery/kinds.py`, and one parameter of the contract suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Found:
    """One replica, as a discovery knows it.

    Attributes:
        url: Where it listens: http or https, host and port, no path.
        name: What people call it: a pod's name; empty for host and port.
        ready: Whether its platform says that it may get requests. One that is not is probed and
            kept, and gets no new requests: a pod that is terminating, or fails its probe.
    """

    url: str
    name: str = ""
    ready: bool = True


Snapshot = frozenset[Found]


class Discovery(Protocol):
    """A source of snapshots of one model's replicas."""

    def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield what there is now, and again whenever that changes, for ever.

        Equal snapshots may be yielded again. Whatever fails outside (a file that is broken for a
        moment, a name server that does not answer, a watch that ends) is waited out here, with
        back-off, and told through `problem`; the last good snapshot stays in force meanwhile.
        Ends only by cancellation, which closes what it has open.
        """
        ...

    @property
    def problem(self) -> str | None:
        """What keeps it from knowing better now, in one short line; None while all is well."""
        ...
