"""Who has what only one replica has, told by the gateway that was there to those that were not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import blake2b

from gateway.redis.errors import LinkError
from gateway.redis.layout import whereabouts_key
from gateway.redis.link import RedisLink
from gateway.redis.scripts import load_script
from routing.types import ReplicaId

# Each use begins it anew. At 50 new ids a second they take 25 MB.
TTL_S = 3600.0
REMEMBER_DEADLINE_S = 1.0
# Being told at once; what comes on top is known to this gateway alone.
MAX_UNDER_WAY = 256
_DIGEST_BYTES = 16


class Whereabouts:
    """A `gateway.stored.Elsewhere` in Redis. Ids themselves never leave the gateway.

    Args:
        link: To Redis.
        deadline_s: Returns the seconds for what is on a request's path, as look-ups in the index
            are.
    """

    def __init__(self, link: RedisLink, deadline_s: Callable[[], float]) -> None:
        self._link = link
        self._deadline_s = deadline_s
        self._remember = load_script("gateway.shared", "lua/remember.lua", writes=True)
        self._recall = load_script("gateway.shared", "lua/recall.lua", writes=False)
        self._under_way: set[asyncio.Task[None]] = set()

    def remember(self, key: bytes, replica: ReplicaId) -> None:
        """Tell the others who has something; returns at once."""
        if len(self._under_way) < MAX_UNDER_WAY:
            task = asyncio.create_task(self._tell(key, replica), name="remember")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def settle(self) -> None:
        """Wait until the others can know what they were told, or until the deadline."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._deadline_s())

    async def recall(self, key: bytes) -> ReplicaId | None:
        """Return who has something, as others told; None also where nobody answers in time."""
        deadline_s = self._deadline_s()
        try:
            found = await self._link.call(self._recall, [self._key(key)], (), deadline_s)
        except LinkError:
            return None
        return None if found is None else ReplicaId(found.decode("utf-8", "replace"))

    async def _tell(self, key: bytes, replica: ReplicaId) -> None:
        keys, ttl_ms = [self._key(key)], int(TTL_S * 1000)
        try:
            await self._link.call(self._remember, keys, (replica, ttl_ms), REMEMBER_DEADLINE_S)
        except LinkError:
            return  # counted by the link; this gateway knows it

    def _key(self, key: bytes) -> bytes:
        digest = blake2b(key, digest_size=_DIGEST_BYTES).hexdigest()
        return whereabouts_key(self._link.namespace, digest)
