"""Cross-origin calls from web pages.

Source: the Fetch standard, "HTTP extensions" (CORS protocol).
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.access import CorsConfig
from gateway.proxy.headers import Header, first

_EXPOSED = (
    b"x-request-id, retry-after, x-warmroute-replica, x-warmroute-policy, x-warmroute-reason, "
    b"x-warmroute-tier, x-warmroute-tiers, x-warmroute-matched-tokens, x-warmroute-pool, "
    b"x-warmroute-rule"
)


class Cors:
    """Answers preflights and marks answers, for the configured origins."""

    def __init__(self, config: CorsConfig) -> None:
        self._origins = frozenset(origin.encode() for origin in config.origins)
        self._max_age = str(config.max_age_s).encode()

    def headers(self, request: Sequence[Header]) -> list[Header]:
        """Return the headers that an answer to this request carries; none for other origins."""
        origin = first(request, b"origin") if self._origins else None
        if origin is None:
            return []
        vary: list[Header] = [(b"vary", b"Origin")]  # for caches, whoever asked
        if b"*" not in self._origins and origin not in self._origins:
            return vary
        allowed = (b"access-control-allow-origin", origin)
        return [*vary, allowed, (b"access-control-expose-headers", _EXPOSED)]

    def preflight(self, method: str, request: Sequence[Header]) -> list[Header] | None:
        """Return the headers of a preflight's answer; None where the request is no preflight."""
        if method != "OPTIONS" or not self._origins:
            return None
        if first(request, b"access-control-request-method") is None:
            return None
        headers = self.headers(request)
        if not any(name == b"access-control-allow-origin" for name, _ in headers):
            return headers
        asked = first(request, b"access-control-request-headers") or b"content-type"
        return [
            *headers,
            (b"access-control-allow-methods", b"GET, POST"),
            # Whatever they are: an API key and a list of content types is all that counts here.
            (b"access-control-allow-headers", asked),
            (b"access-control-max-age", self._max_age),
        ]
