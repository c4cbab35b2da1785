"""Does one thing again and again beside a measurement."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Repeating:
    """A context manager: something is done in a thread as long as the block lasts.

    Args:
        act: What is done.
        interval_s: The pause before each time.
        name: Of the thread.
    """

    def __init__(self, act: Callable[[], None], interval_s: float, name: str) -> None:
        self._act = act
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._act()
