"""One client that asks again and again, and notes how long each answer takes."""

import http.client
import json
import threading
import time
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from loadtests.events.upstream import MODEL

_INTERVAL_S: Final = 0.005
_TIMEOUT_S: Final = 10.0


class Probe:
    """A context manager: requests run in a thread as long as the block does.

    Args:
        url: Of the gateway.

    Attributes:
        took_s: Seconds of each request.
    """

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.took_s: list[float] = []

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

    def _ask(self) -> None:
        host, port = self._address.hostname or "", self._address.port
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        prompt = list(range(256))
        body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 1})
        while not self._stop.wait(_INTERVAL_S):
            began = time.perf_counter()
            connection.request("POST", "/v1/completions", body)
            connection.getresponse().read()
            self.took_s.append(time.perf_counter() - began)
