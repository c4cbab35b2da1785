"""The replicas that the configuration lists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from gateway.config.fleet import ReplicaConfig
from gateway.replicas.discovery.base import Found, Snapshot


class StaticDiscovery:
    """Yields the configured list, once; a new list is a new configuration.

    Args:
        replicas: The list, under its ids as names.

    Attributes:
        snapshot: The same as a snapshot.
    """

    problem: str | None = None

    def __init__(self, replicas: Iterable[ReplicaConfig]) -> None:
        self.snapshot: Snapshot = frozenset(Found(one.url, one.id) for one in replicas)

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield the list, and then wait to be cancelled; see `Discovery.snapshots`."""
        yield self.snapshot
        await asyncio.get_running_loop().create_future()
