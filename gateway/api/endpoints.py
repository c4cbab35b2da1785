"""The public API's paths: an allow-list, and how each path's body holds its prompt.

What is not listed here does not exist for clients: engine controls (/reset_prefix_cache, /sleep,
LoRA loading, /collective_rpc, /metrics) have no row, so they have no way through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway.errors import MethodNotAllowed
from gateway.prompt.body import BodyKind


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path whose requests a replica answers.

    Attributes:
        label: The path as metrics and logs name it; without ids.
        method: The one method that it takes.
        kind: How its body holds the prompt; None for requests about a stored response.
        response_id: The stored response that the request is about, which only one replica has.
    """

    label: str
    method: str
    kind: BodyKind | None
    response_id: str | None = None

    def check_method(self, method: str) -> None:
        """Check a request's method.

        Raises:
            MethodNotAllowed: It is another one.
        """
        if method != self.method:
            raise MethodNotAllowed(f"This path takes {self.method} only.", allowed=self.method)


_KIND_BY_PATH: Mapping[str, BodyKind] = MappingProxyType(
    {
        "/v1/chat/completions": BodyKind.CHAT,
        "/v1/completions": BodyKind.COMPLETION,
        "/v1/responses": BodyKind.RESPONSES,
        "/v1/messages": BodyKind.MESSAGES,
        "/v1/messages/count_tokens": BodyKind.OTHER,
        "/v1/embeddings": BodyKind.OTHER,
        "/tokenize": BodyKind.OTHER,
        "/detokenize": BodyKind.OTHER,
        "/score": BodyKind.OTHER,
        "/v1/score": BodyKind.OTHER,
        "/rerank": BodyKind.OTHER,
        "/v1/rerank": BodyKind.OTHER,
        "/v2/rerank": BodyKind.OTHER,
        "/classify": BodyKind.OTHER,
        "/pooling": BodyKind.OTHER,
        "/v1/audio/transcriptions": BodyKind.FORM,
        "/v1/audio/translations": BodyKind.FORM,
        "/invocations": BodyKind.INVOCATION,
    }
)

ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {path: Endpoint(path, "POST", kind) for path, kind in _KIND_BY_PATH.items()}
)
"""Every path with a body that names a model, by path."""

_STORED_RESPONSE = re.compile(r"/v1/responses/([A-Za-z0-9_-]{1,128})(/cancel)?")


def find(path: str) -> Endpoint | None:
    """Return the endpoint of a path, or None where no replica is asked."""
    endpoint = ENDPOINTS.get(path)
    if endpoint is not None:
        return endpoint
    stored = _STORED_RESPONSE.fullmatch(path)
    if stored is None:
        return None
    if stored[2]:
        return Endpoint("/v1/responses/{id}/cancel", "POST", None, stored[1])
    return Endpoint("/v1/responses/{id}", "GET", None, stored[1])
