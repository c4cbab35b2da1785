"""Rates of API keys, over all gateways.

Each gateway lets requests in by its own bucket, without asking anybody, and takes from it what the
others let in as it hears of that. So a key's rate holds over all of them; only a burst that comes
within one tick may be let in by each: at most their number times the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.api.access import Keys
from gateway.shared.word import Word

# After a longer silence we begin anew: what all let in while nobody could hear the others is over.
FORGET_AFTER_S = 2.0


class Rates:
    """Tells what we let in, and takes what others did.

    Args:
        keys: The keys in force.
        now: Monotonic seconds.
    """

    def __init__(self, keys: Keys, now: Callable[[], float]) -> None:
        self._keys = keys
        self._now = now
        self._heard: dict[str, Mapping[bytes, int]] = {}
        self._heard_at = now()

    def tell(self) -> Mapping[bytes, int]:
        """Return by key's tag how many requests we let in since we started."""
        return self._keys.taken()

    def hear(self, words: Mapping[str, tuple[float, Word]]) -> None:
        """Take what the others let in since we heard them last, by gateway."""
        if self._now() - self._heard_at > FORGET_AFTER_S:
            self._heard.clear()
        self._heard_at = self._now()
        for gateway, (_, word) in words.items():
            before = self._heard.get(gateway)
            if before is None:
                continue  # nobody knows when that was
            for tag, number in word.taken.items():
                since = number - before.get(tag, 0)
                if since > 0:
                    self._keys.taken_elsewhere(tag, since)
        self._heard = {gateway: word.taken for gateway, (_, word) in words.items()}
