"""Flushes of shared pools: what one gateway is told to forget, all of them forget.

Each flush has a number, and a gateway forgets what it knows of a model's pool where it hears of a
higher one than its own. All tell the highest, so a flush also reaches who was cut off from the
gateway that was asked. One that has just come forgets too, while it knows nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.l2.pools import SharedPools
from gateway.observability.logging import EventLog
from gateway.shared.word import Word


class Flushes:
    """Tells of flushes, and takes those of others.

    Args:
        pools: Forget.
        log: Gets one line when a flush of another gateway made this one forget something.
        wall: Seconds since 1970: gateways that cannot hear each other give the later flush the
            higher number. Those that do need no clock for that.

    Attributes:
        wake: Called when there is a flush to tell.
    """

    def __init__(self, pools: SharedPools, log: EventLog, wall: Callable[[], float]) -> None:
        self._pools = pools
        self._log = log
        self._wall = wall
        self._number_by_model: dict[str, int] = {}
        self.wake: Callable[[], None] = _nobody

    def flush(self, model: str | None = None) -> dict[str, int]:
        """Forget what is known of the pools, here and at all gateways.

        Args:
            model: Of which model; None for all.

        Returns:
            Chunks that this gateway forgot, by model key.
        """
        flushed, now_ms = self._pools.flush(model), int(self._wall() * 1000)
        for key in flushed:
            self._number_by_model[key] = max(now_ms, self._number_by_model.get(key, 0) + 1)
        self.wake()
        return flushed

    def tell(self) -> Mapping[str, int]:
        """Return the number of the last flush by model, where there was one."""
        numbers = self._number_by_model.items()
        self._number_by_model = {
            model: number for model, number in numbers if self._pools.get(model) is not None
        }
        return self._number_by_model

    def hear(self, words: Mapping[str, tuple[float, Word]]) -> None:
        """Forget what others were told to forget since, by gateway."""
        for gateway, (_, word) in words.items():
            for model, number in word.flushed.items():
                if number > self._number_by_model.get(model, 0):
                    self._take(gateway, model, number)

    def _take(self, gateway: str, model: str, number: int) -> None:
        for num_chunks in self._pools.flush(model).values():
            self._number_by_model[model] = number
            if num_chunks:
                told = {"gateway": gateway, "model": model, "chunks": num_chunks}
                self._log.info("flushed_elsewhere", tier="L2", **told)


def _nobody() -> None:
    """Nobody to wake before the exchange runs."""
