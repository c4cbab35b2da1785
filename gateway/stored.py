"""What only one replica has: stored responses, and sessions that a model container opened."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from gateway.proxy.headers import Header, first
from routing.types import ReplicaId

# As many as an engine keeps in memory by any sensible measure; the oldest are forgotten first.
MAX_RESPONSES = 100_000

# vLLM's ids; they stand in the first bytes of a whole answer and of a stream's first event.
_RESPONSE_ID = re.compile(rb'"id":\s*"(resp_[A-Za-z0-9_-]{1,123})"')
_LOOKED_AT_BYTES = 4096
_ID_SHOWS_BYTES = 256  # vLLM writes the id first, after at most the names of an event
# SageMaker's stateful sessions: a container names a new one in this header of its answer, as
# `ID; Expires=...`, and clients send the id with each later request.
_NEW_SESSION = b"x-amzn-sagemaker-new-session-id"
SESSION_HEADER = b"x-amzn-sagemaker-session-id"
NEW_SESSION = b"NEW_SESSION"  # a client's word for a session that it does not have yet
RESPONSES_PATH = "/v1/responses"  # the one path whose answers can be asked for again
MAX_SESSION_BYTES = 256  # SageMaker's own limit


class Notes:
    """Reads the id of a response from the first bytes of its answer, however they were cut.

    Attributes:
        reading: Further bytes are wanted.
    """

    __slots__ = ("_head", "_keep", "_replica", "reading")

    def __init__(
        self,
        keep: Callable[[bytes, ReplicaId], Awaitable[None]],
        replica: ReplicaId,
        *,
        reading: bool,
    ) -> None:
        self._keep = keep
        self._replica = replica
        self._head = b""
        self.reading = reading

    async def feed(self, piece: bytes) -> None:
        """Take the next piece of the body, before the client gets it."""
        self._head += piece[:_LOOKED_AT_BYTES]
        found = _RESPONSE_ID.search(self._head[:_LOOKED_AT_BYTES])
        if found is not None:
            await self._keep(b"response " + found[1], self._replica)
        # An answer of another kind shows its own id, or an error, within as many bytes.
        other = len(self._head) >= _ID_SHOWS_BYTES and b'"resp_' not in self._head
        self.reading = found is None and not other and len(self._head) < _LOOKED_AT_BYTES


class Elsewhere(Protocol):
    """What other gateways know of such ids."""

    def remember(self, key: bytes, replica: ReplicaId) -> None:
        """Tell them; returns at once."""
        ...

    async def recall(self, key: bytes) -> ReplicaId | None:
        """Ask them, for some milliseconds at most; None where none knows."""
        ...

    async def settle(self) -> None:
        """Wait until they can know what they were told, for some milliseconds at most."""
        ...


class Stored:
    """Ids of responses and sessions, and the replicas that made them, bounded.

    Args:
        elsewhere: Knows those of other gateways; None where there are none.
    """

    def __init__(self, elsewhere: Elsewhere | None = None) -> None:
        self._replica_by_id: OrderedDict[bytes, ReplicaId] = OrderedDict()
        self._elsewhere = elsewhere

    async def notes(self, headers: Sequence[Header], replica: ReplicaId, path: str) -> Notes:
        """Note what an answer's headers say, and return what reads the rest from its body.

        A client may name what it was told at once, to any gateway, so that the others are told
        first.
        """
        opened = first(headers, _NEW_SESSION)
        if opened is not None:
            session = opened.partition(b";")[0].strip()
            if 0 < len(session) <= MAX_SESSION_BYTES:
                await self._keep_new(b"session " + session, replica)
        return Notes(self._keep_new, replica, reading=path == RESPONSES_PATH)

    async def response(self, response_id: str) -> ReplicaId | None:
        """Return who holds a response, or None."""
        return await self._find(b"response " + response_id.encode())

    async def home(
        self, headers: Sequence[Header], continued: str | None = None
    ) -> ReplicaId | None:
        """Return who has what a request goes on with, or None.

        Args:
            headers: May name a session.
            continued: The response that it continues, which comes first.
        """
        if not self._replica_by_id and self._elsewhere is None:
            return None
        if continued is not None:
            maker = await self._find(b"response " + continued.encode(errors="replace"))
            if maker is not None:
                return maker
        named = first(headers, SESSION_HEADER)
        if named is None or not 0 < len(named) <= MAX_SESSION_BYTES or named == NEW_SESSION:
            return None
        return await self._find(b"session " + named)

    async def _find(self, key: bytes) -> ReplicaId | None:
        """Return who has something; what is used is told again, so that others know it as long."""
        found = self._replica_by_id.get(key)
        if found is None and self._elsewhere is not None:
            found = await self._elsewhere.recall(key)
        if found is not None:
            self._keep(key, found)
        return found

    async def _keep_new(self, key: bytes, replica: ReplicaId) -> None:
        self._keep(key, replica)
        if self._elsewhere is not None:
            await self._elsewhere.settle()

    def _keep(self, key: bytes, replica: ReplicaId) -> None:
        if self._elsewhere is not None:
            self._elsewhere.remember(key, replica)
        self._replica_by_id[key] = replica
        if len(self._replica_by_id) > MAX_RESPONSES:
            self._replica_by_id.popitem(last=False)
