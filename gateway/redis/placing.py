"""Which node gets a call: the one that there is, or the one that has the key's slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from gateway.background import Background, Work
from gateway.redis.address import Endpoint, Kind
from gateway.redis.cluster import key_in, read_redirect
from gateway.redis.errors import CallRefused, LinkError
from gateway.redis.node import MAX_BACKOFF_S, MIN_BACKOFF_S, Dialing, LinkState, Node
from gateway.redis.places import find_primary, find_slots

# The map is asked for again although nobody complains: a node that has no slots left is closed.
REFRESH_S = 30.0

OnChange = Callable[[Node | None, LinkState, str], None]
"""Told of a node, its state and why; of none where it is a cluster of which no node is known."""
_WORST_LAST = (LinkState.UP, LinkState.SLOW, LinkState.READ_ONLY, LinkState.DOWN)


class Placing(Protocol):
    """Knows the nodes."""

    @property
    def state(self) -> LinkState:
        """The worst node's."""
        ...

    def node_of(self, key: bytes) -> Node | None:
        """Return the node that has a key; None where none is known to."""
        ...

    def redirected(self, node: Node, why: CallRefused) -> Node | None:
        """Return the node that a `MOVED` or an `ASK` of `node` points to; None for nowhere."""
        ...

    async def run(self, background: Background) -> None:
        """Keep the nodes connected until cancelled.

        Args:
            background: Runs each of several nodes.
        """
        ...


class Fixed:
    """One node: at an address, or where the sentinels say."""

    def __init__(self, dialing: Dialing, namespace: str, on_change: OnChange) -> None:
        self._dialing = dialing
        self._node = Node(self._find, dialing, lambda: f"{{{namespace}}}:probe", on_change)

    @property
    def state(self) -> LinkState:
        """The node's."""
        return self._node.state

    def node_of(self, key: bytes) -> Node | None:  # noqa: ARG002 - it has all keys
        """Return the node."""
        return self._node

    def redirected(self, node: Node, why: CallRefused) -> Node | None:  # noqa: ARG002 - see below
        """Return None: a cluster behind a plain address is a mistake in the configuration."""
        return None

    async def run(self, background: Background) -> None:  # noqa: ARG002 - one node, in this task
        """Keep it connected."""
        await self._node.run()

    async def _find(self) -> Endpoint:
        address = self._dialing.address
        if address.kind is Kind.SENTINEL:
            return await find_primary(self._dialing, address.endpoints, address.master)
        return address.endpoints[0]


class Cluster:
    """The primaries of a cluster, each with some of the slots."""

    def __init__(
        self,
        dialing: Dialing,
        namespace: str,
        on_change: OnChange,
        on_gone: Callable[[Node | None], None],
    ) -> None:
        self._dialing = dialing
        self._namespace = namespace
        self._on_change = on_change
        self._on_gone = on_gone
        self._running: dict[Endpoint, tuple[Node, asyncio.Task[None]]] = {}
        self._ranges: dict[Endpoint, list[range]] = {}
        self._node_by_slot: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._stale = asyncio.Event()
        self._told_nobody = False

    @property
    def state(self) -> LinkState:
        """The worst node's; down while no slot has a node."""
        states = [node.state for node, _ in self._running.values()]
        return max(states, key=_WORST_LAST.index, default=LinkState.DOWN)

    def node_of(self, key: bytes) -> Node | None:
        """Return the node that has a key's slot."""
        return self._node_by_slot[key_slot(key)]

    def redirected(self, node: Node, why: CallRefused) -> Node | None:
        """Return the node that a redirect points to, and ask for the map again."""
        self._stale.set()
        endpoint = read_redirect(str(why), node.endpoint)
        found = self._running.get(endpoint) if endpoint else None
        if found is not None and why.code == "MOVED":
            self._node_by_slot[int(str(why).split(" ")[1])] = found[0]
        return found[0] if found else None

    async def run(self, background: Background) -> None:
        """Keep all nodes connected and the map of slots up to date."""
        try:
            while True:
                self._stale.clear()
                if not await self._refresh(background):
                    await asyncio.sleep(MAX_BACKOFF_S * self._dialing.rng.uniform(0.75, 1.0))
                    continue
                # A move of many slots is many redirects, and one look at the map.
                await asyncio.sleep(MIN_BACKOFF_S)
                # Of a node that is down another one gets the slots, and nobody tells us.
                is_whole = self.state is not LinkState.DOWN
                try:
                    async with asyncio.timeout(REFRESH_S if is_whole else MAX_BACKOFF_S):
                        await self._stale.wait()
                except TimeoutError:
                    pass
        except asyncio.CancelledError:  # after a bug, the nodes that are there go on
            for endpoint in list(self._running):
                self._end(endpoint)
            raise

    async def _refresh(self, background: Background) -> bool:
        """Ask for the map; False where nobody knows it."""
        seeds = [e for e, (node, _) in self._running.items() if node.state is not LinkState.DOWN]
        seeds += [e for e in self._dialing.address.endpoints if e not in seeds]
        try:
            ranges = await find_slots(self._dialing, seeds)
        except LinkError as error:
            if not self._running and not self._told_nobody:
                self._told_nobody = True
                self._on_change(None, LinkState.DOWN, error.reason)
            return False
        if self._told_nobody:
            self._told_nobody = False
            self._on_gone(None)
        self._ranges = ranges
        for endpoint in ranges.keys() - self._running.keys():
            self._run(endpoint, background)
        by_slot: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for endpoint, owned in ranges.items():
            node = self._running[endpoint][0]
            for slots in owned:
                by_slot[slots.start : slots.stop] = [node] * len(slots)
        self._node_by_slot = by_slot
        for endpoint in self._running.keys() - ranges.keys():
            self._end(endpoint)
        return True

    def _end(self, endpoint: Endpoint) -> None:
        node, task = self._running.pop(endpoint)
        task.cancel()
        self._on_gone(node)

    def _run(self, endpoint: Endpoint, background: Background) -> None:
        async def here() -> Endpoint:
            return endpoint

        def probe_key() -> str:
            return key_in(self._ranges.get(endpoint, ()), f"{self._namespace}:probe")

        node = Node(here, self._dialing, probe_key, self._noticed)
        node.endpoint = endpoint
        self._running[endpoint] = (node, background.start(Work.REDIS, node.run, str(endpoint)))

    def _noticed(self, node: Node, state: LinkState, reason: str) -> None:
        if state is not LinkState.UP:
            self._stale.set()  # another one may have its slots soon
        self._on_change(node, state, reason)
