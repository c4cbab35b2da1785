"""What operators need of the other gateways, where there are any."""

from __future__ import annotations

from typing import Protocol


class Others(Protocol):
    """The other gateways, as far as operators need them."""

    async def settle(self) -> None:
        """Wait until they can know what was said here, for a moment at most.

        An operator may speak to another one next, who must not take it for the earlier word.
        """
        ...

    def answered(self, since: float) -> bool:
        """Return whether all of them told what they have in flight after they heard a word.

        Args:
            since: When it was said, monotonic seconds.
        """
        ...
