"""One client that asks again and again, and notes how long each answer takes."""

import http.client
import json
import time
from typing import Final
from urllib.parse import urlsplit

from loadtests.events.upstream import MODEL
from loadtests.repeating import Repeating

_INTERVAL_S: Final = 0.005
_TIMEOUT_S: Final = 10.0


class Probe(Repeating):
    """A context manager: requests run in a thread as long as the block does.

    Args:
        url: Of the gateway.

    Attributes:
        took_s: Seconds of each request.
    """

    def __init__(self, url: str) -> None:
        super().__init__(self._ask, _INTERVAL_S, "probe")
        address = urlsplit(url)
        host, port = address.hostname or "", address.port
        self._connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        prompt = list(range(256))
        self._body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 1})
        self.took_s: list[float] = []

    def _ask(self) -> None:
        began = time.perf_counter()
        self._connection.request("POST", "/v1/completions", self._body)
        self._connection.getresponse().read()
        self.took_s.append(time.perf_counter() - began)
