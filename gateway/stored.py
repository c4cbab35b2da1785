"""Which replica holds which stored response of the Responses API."""

from __future__ import annotations

import re
from collections import OrderedDict

from routing.types import ReplicaId

# As many as an engine keeps in memory by any sensible measure; the oldest are forgotten first.
MAX_RESPONSES = 100_000

# vLLM's ids; they stand in the first bytes of a whole answer and of a stream's first event.
_RESPONSE_ID = re.compile(rb'"id":\s*"(resp_[A-Za-z0-9_-]{1,123})"')
_LOOKED_AT_BYTES = 4096


class StoredResponses:
    """Response ids and the replicas that made them, bounded."""

    def __init__(self) -> None:
        self._replica_by_id: OrderedDict[str, ReplicaId] = OrderedDict()

    def note(self, first_piece: bytes, replica: ReplicaId) -> None:
        """Note the response whose answer begins with these bytes."""
        found = _RESPONSE_ID.search(first_piece[:_LOOKED_AT_BYTES])
        if found is None:
            return
        self._replica_by_id[found[1].decode()] = replica
        if len(self._replica_by_id) > MAX_RESPONSES:
            self._replica_by_id.popitem(last=False)

    def replica(self, response_id: str) -> ReplicaId | None:
        """Return who holds a response, or None."""
        return self._replica_by_id.get(response_id)
