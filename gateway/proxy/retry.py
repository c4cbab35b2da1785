"""When a request may go to another replica. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# What a quiet gateway may retry at once, before its requests have earned anything.
_RESERVE = 10.0

# A replica says with these that it did not begin: its queue is full, or it is not able to serve.
NOT_BEGUN_STATUSES = frozenset({429, 503})


@dataclass(slots=True)
class RetryBudget:
    """Lets retries be a share of recent requests, so that a fleet in trouble gets no storm.

    Attributes:
        ratio: Retries that each request earns.

    Source:
        Finagle's RetryBudget.
    """

    ratio: float
    balance: float = _RESERVE

    def request(self) -> None:
        """Count a request. What is saved up is bounded, so that a calm hour pays for no storm."""
        self.balance = min(_RESERVE, self.balance + self.ratio)

    def take(self) -> bool:
        """Return whether one more retry is allowed, and count it."""
        if self.balance < 1.0:
            return False
        self.balance -= 1.0
        return True
