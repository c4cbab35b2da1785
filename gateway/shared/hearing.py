"""Reads what the other gateways told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.observability.logging import EventLog
from gateway.shared.word import SILENCE, Word, decode_word


class Hearing:
    """Reads words, and says once of each gateway that its word cannot be read.

    Such a gateway is there, and keeps what it owns, but its load counts as none. Gateways of
    another layout are not heard at all, so this is a mistake of ours or somebody else's key.

    Args:
        log: Of the gateway.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._unreadable: frozenset[str] = frozenset()

    def read(self, flat: Sequence[Any], answered_at: float) -> Mapping[str, tuple[float, Word]]:
        """Return by gateway when it said what.

        Args:
            flat: Ids, milliseconds since it was said, and words, as the script returns them.
            answered_at: When it did so, monotonic seconds.
        """
        words = {
            name.decode("ascii", "replace"): (answered_at - age_ms / 1000, decode_word(text))
            for name, age_ms, text in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        }
        unreadable = frozenset(name for name, (_, word) in words.items() if word is SILENCE)
        for name in sorted(unreadable - self._unreadable):
            self._log.warning("gateway_unreadable", gateway=name, problem="its load counts as none")
        self._unreadable = unreadable
        return words
