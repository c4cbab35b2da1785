"""Asks a listener whether it lives, again and again, as an orchestrator would."""

import http.client
import time
from dataclasses import dataclass
from typing import Final

from loadtests.demo.figures import percentile
from loadtests.repeating import Repeating

_INTERVAL_S: Final = 0.1
# Kubernetes waits 1 s by default; waiting longer shows how late a late answer is.
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Liveness:
    """What the probes of one listener met.

    Attributes:
        answered: Probes answered with 200.
        failed: All others: another status, no connection, no answer in time.
        p99_s: Seconds to an answer, the 99th percentile; None without an answer.
    """

    answered: int
    failed: int
    p99_s: float | None


class Probes(Repeating):
    """Probes `/livez` of one listener while the block runs, a fresh connection each time.

    Args:
        port: Of the listener, on loopback.
    """

    def __init__(self, port: int) -> None:
        super().__init__(self._probe, _INTERVAL_S, f"livez {port}")
        self._port = port
        self._answers_s: list[float] = []
        self._failed = 0

    def found(self) -> Liveness:
        """Return what was met; after the block."""
        p99_s = percentile(self._answers_s, 99) if self._answers_s else None
        return Liveness(len(self._answers_s), self._failed, p99_s)

    def _probe(self) -> None:
        started = time.monotonic()
        if self._is_alive():
            self._answers_s.append(time.monotonic() - started)
        else:
            self._failed += 1

    def _is_alive(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", "/livez")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
