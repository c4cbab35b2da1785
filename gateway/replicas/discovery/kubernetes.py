"""Replicas from the Kubernetes API: the endpoints of a Service, or pods by their labels.

List, then watch from the list's resourceVersion. A watch that ends in order goes on from the last
version that an event or a bookmark gave. After whatever else ends it (410, a reset, silence) we
list again, and we also list from time to time, so that an event that was lost heals.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from gateway.config.discovery import KubernetesDiscoveryConfig
from gateway.replicas.discovery.base import Snapshot
from gateway.replicas.discovery.kubernetes_collection import ENDPOINT_SLICES, PODS, Collection
from gateway.replicas.discovery.kubernetes_objects import ApiFault

if TYPE_CHECKING:
    from gateway.replicas.discovery.kubernetes_api import KubernetesApi

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a pod's token, namespace and authority."""

_GONE = 410
# 2**10 times the first pause is over the longest one.
_MAX_DOUBLINGS = 10
# A watch that ends sooner, with no event, did no good: opened anew at once, it would be a storm.
_HELD_S = 0.5


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """How patient the watch is.

    Attributes:
        watch_s: Whole seconds after which the server is to end a watch. Bookmarks come about once
            a minute and before that end, so a connection that is silent for longer is dead.
        grace_s: Silence beyond `watch_s` that a connection is allowed: for a slow network.
        relist_s: Between two lists while nothing fails.
        first_pause_s: After the first failure; it doubles with each further one in a row.
        longest_pause_s: It grows no further than this, and the server may ask for no more.
    """

    watch_s: int = 60
    grace_s: float = 10.0
    relist_s: float = 300.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 30.0


class KubernetesDiscovery:
    """Follows one Service or one selector.

    Each failure ends with a new client, so that rotated authorities, tokens and kubeconfigs are
    read again.

    Args:
        config: Where to look.
        now: Monotonic seconds.
        rng: Spreads the requests of many gateways.
        times: Waits and pauses.
        service_account: Folder of the pod's credentials.
    """

    def __init__(
        self,
        config: KubernetesDiscoveryConfig,
        now: Callable[[], float],
        rng: Random,
        times: WatchTimes = WatchTimes(),
        service_account: Path = SERVICE_ACCOUNT,
    ) -> None:
        self._config = config
        self._now = now
        self._rng = rng
        self._times = times
        self._service_account = service_account
        self._resource = ENDPOINT_SLICES if config.service else PODS
        self._collection = Collection(self._resource, [config.port], config.scheme)
        self._fault: str | None = None
        self._num_failures = 0
        self._opened_at = math.inf  # when the last watch opened, if it was not yet accounted for

    @property
    def problem(self) -> str | None:
        """What the API refuses, or what its objects lack; None while all is well."""
        text = self._fault or (self._collection.problem if self._collection.version else None)
        return f"{self._config.source}: {text}" if text else None

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield the replicas, and again when they change; nothing before a first list.

        See `Discovery.snapshots`.
        """
        in_force: Snapshot | None = None
        while True:
            async with aclosing(self._follow()) as changes:
                async for _ in changes:
                    found = self._collection.snapshot()
                    if found != in_force:
                        in_force = found
                        yield found

    async def _follow(self) -> AsyncGenerator[None, None]:
        """Yield after each change of the collection, up to the first fault and the pause for it."""
        try:
            api = await asyncio.to_thread(self._open)
            async with aclosing(api):
                while True:
                    self._collection.replace(await self._list(api))
                    yield
                    list_at = self._now() + self._spread(self._times.relist_s)
                    while self._now() < list_at:
                        async with aclosing(self._watch(api, list_at)) as changes:
                            async for _ in changes:
                                yield
        except ApiFault as fault:
            # A version that is gone is how the API works, and no problem.
            self._fault = self._fault if fault.status == _GONE else str(fault)
            await self._pause(fault.retry_after_s)

    def _open(self) -> KubernetesApi:
        # In a thread: it imports for 0.15 s and reads files.
        from gateway.replicas.discovery.kubernetes_api import open_api  # noqa: PLC0415 - see there

        return open_api(self._config.kubeconfig, self._service_account)

    async def _list(self, api: KubernetesApi) -> bytes:
        # Without a resourceVersion, as an API server's cache may be behind what we know already.
        return await api.list_all(self._resource, self._namespace(api), self._selector())

    async def _watch(self, api: KubernetesApi, until: float) -> AsyncGenerator[None, None]:
        """Yield after each batch of events of one watch, which ends in order."""
        lasts_s = max(1, min(self._times.watch_s, round(until - self._now())))
        params = {
            **self._selector(),
            "resourceVersion": self._collection.version,
            "timeoutSeconds": str(lasts_s),
        }
        silence_s = lasts_s + self._times.grace_s
        async with api.watch(self._resource, self._namespace(api), params, silence_s) as batches:
            self._fault, self._opened_at = None, self._now()
            async for lines in batches:
                for line in lines:
                    self._collection.apply(line)
                self._num_failures = 0
                yield
                if self._now() >= until:
                    return  # a server that does not count its seconds is not waited for
        if self._now() - self._opened_at < _HELD_S:
            await self._pause()

    async def _pause(self, retry_after_s: float = 0.0) -> None:
        """Wait before the next try, the longer the more tries failed in a row."""
        if self._now() - self._opened_at >= _HELD_S:
            self._num_failures = 0
        self._opened_at = math.inf
        times = self._times
        doublings = min(self._num_failures, _MAX_DOUBLINGS)
        self._num_failures += 1
        pause_s = max(self._spread(times.first_pause_s * 2**doublings), retry_after_s)
        await asyncio.sleep(min(pause_s, times.longest_pause_s))

    def _spread(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.5, 1.0)

    def _namespace(self, api: KubernetesApi) -> str:
        return self._config.namespace or api.namespace

    def _selector(self) -> dict[str, str]:
        service = self._config.service
        label = f"kubernetes.io/service-name={service}" if service else self._config.selector
        return {"labelSelector": label or ""}
