"""Tells the other gateways where prompts were sent, until events say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.index.segments import KEY_BYTES, Cut, Names
from gateway.redis.link import Call
from gateway.redis.scripts import load_script

_PREDICT: Final = load_script("gateway.index", "lua/predict.lua", writes=True)
# Predictions that live longer are all that is ever known of a replica, and each use renews them
# all; shorter ones only bridge the time until events come.
LASTING_S = 10.0


class Predicting:
    """Makes the calls that note predictions.

    Args:
        namespace: Of all keys.
        send: Takes each call and how many blocks it names; nobody waits for it.
    """

    def __init__(self, namespace: str, send: Callable[[Call, int], None]) -> None:
        self._names = Names(namespace)
        self._send = send

    def predict(self, life: int, parts: Cut, ttl_s: float, num_held: int) -> None:
        """Note that a prompt was sent to a replica.

        Args:
            life: Of the replica.
            parts: The prompt.
            ttl_s: How long that counts.
            num_held: Leading blocks that the replica is known to hold.
        """
        self._note_from(life, parts, 0 if ttl_s >= LASTING_S else num_held, ttl_s)

    def withdraw(self, life: int, parts: Cut, start: int) -> None:
        """Take back what was noted of a prompt from one block on."""
        self._note_from(life, parts, start, 0.0)

    def _note_from(self, life: int, parts: Cut, begin: int, ttl_s: float) -> None:
        for number in range(parts.num_segments):
            start, stop = parts.starts[number], parts.starts[number + 1]
            if stop > begin:
                first = max(start, begin)
                blocks = parts.packed[first * KEY_BYTES : stop * KEY_BYTES]
                self._note(life, parts.tags[number], ttl_s, blocks, is_whole=first == start)

    def _note(self, life: int, tag: bytes, ttl_s: float, blocks: bytes, *, is_whole: bool) -> None:
        name = self._names.of_predictions(tag)
        args = (life.to_bytes(4, "little"), round(ttl_s * 1000), int(is_whole), blocks)
        self._send(Call(_PREDICT, (name,), args), len(blocks) // KEY_BYTES)
