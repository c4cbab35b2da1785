"""The shared pools of all models: made from a configuration, and kept over reloads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from gateway.background import Background, Work
from gateway.config.fleet import ModelConfig, model_key
from gateway.config.shared_cache import (
    AssumeWriteThroughConfig,
    LmcacheCoordinatorConfig,
    LmcacheFsConfig,
    SharedCacheConfig,
    SharedEventsConfig,
)
from gateway.kvevents.translate import Cleared, Removed, Stored
from gateway.l2.base import SharedCache
from gateway.l2.coordinator import Coordinator
from gateway.l2.host_memory import HostMemories
from gateway.l2.lmcache_fs import LmcacheFs
from gateway.l2.pressure import Pressure, StorageState
from gateway.l2.storage_events import StorageEvents
from gateway.l2.write_through import WriteThrough
from gateway.models import Model
from gateway.observability.logging import EventLog
from gateway.proxy.transport import Transport
from gateway.replicas.registry import Registry, Replica
from routing.types import Tier


@dataclass(slots=True)
class _Pool:
    config: SharedCacheConfig
    cache: SharedCache
    host: HostMemories | None
    pressure: Pressure
    tasks: Sequence[asyncio.Task[None]]


class SharedPools:
    """The pools in use, by model key. Made inside the running event loop.

    Args:
        registry: Replicas tell what their engines were started with.
        transport: Returns a transport for one pool's questions.
        background: Runs what goes on beside requests.
        log: Of the gateway.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        registry: Registry,
        transport: Callable[[], Transport],
        background: Background,
        log: EventLog,
        now: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._transport = transport
        self._background = background
        self._log = log
        self._now = now
        self._pool_by_model: dict[str, _Pool] = {}

    def __iter__(self) -> Iterator[tuple[str, SharedCache]]:
        return iter([(model, pool.cache) for model, pool in self._pool_by_model.items()])

    def get(self, model: str) -> SharedCache | None:
        """Return a model's pool; None where it has none."""
        pool = self._pool_by_model.get(model)
        return None if pool is None else pool.cache

    def storage(self, model: str) -> StorageState | None:
        """Return how the storage behind a model's pool is; None where it has none."""
        pool = self._pool_by_model.get(model)
        return None if pool is None else pool.pressure.state

    def change(self, sections: Iterable[ModelConfig], models: Iterable[Model] = ()) -> None:
        """Put a configuration in force: pools whose section is the same stay as they are.

        Args:
            sections: Of the models.
            models: Are given their pools.
        """
        before, self._pool_by_model = self._pool_by_model, {}
        for section in sections:
            key, config = model_key(section), section.shared_cache
            if config is None:
                continue
            pool = before.pop(key, None)
            if pool is not None and pool.config == config:
                self._pool_by_model[key] = pool
                continue
            if pool is not None:
                _stop(pool)
            cache = self._build(config, key)
            mount = cache.mount if isinstance(cache, LmcacheFs) else None
            pressure = Pressure(config.storage, mount, self._transport(), self._log, key)
            tasks = [
                self._background.start(Work.SHARED_CACHE, cache.run, key),
                self._background.start(Work.SHARED_STORAGE, pressure.run, key),
            ]
            host = None
            if config.l1_capacity_tokens is not None:
                host = HostMemories(config.l1_capacity_tokens, cache.chunk_tokens, self._now)
            self._pool_by_model[key] = _Pool(config, cache, host, pressure, tasks)
        for pool in before.values():
            _stop(pool)
        for model in models:
            pool = self._pool_by_model.get(model.key)
            model.shared, model.host = (None, None) if pool is None else (pool.cache, pool.host)

    def take(self, replica: Replica, change: Stored | Removed | Cleared) -> bool:
        """Take what a replica's events tell of the pool, or of host memory where it is modelled.

        Returns:
            Whether it was taken; else it is the index's.
        """
        pool = self._pool_by_model.get(replica.model_key)
        if pool is None:
            return False
        if isinstance(change, Cleared):
            if pool.host is not None:
                pool.host.forget(replica.replica_id)
            return False
        if change.tier is Tier.L1 and pool.host is not None:
            if isinstance(change, Stored):
                pool.host.stored(replica.replica_id, change.keys)
            return True
        if change.tier is not Tier.L2 or not isinstance(pool.cache, StorageEvents):
            return False
        if isinstance(change, Removed):
            pool.cache.removed(change.keys)
        elif replica.block_size is not None:
            pool.cache.stored(change.keys, replica.block_size)
        return True

    def flush(self, model: str | None = None) -> dict[str, int]:
        """Forget what is known of the pools.

        Args:
            model: Of which model; None for all.

        Returns:
            Chunks that were forgotten, by model key.
        """
        return {key: cache.flush() for key, cache in self if model in (None, key)}

    def close(self) -> None:
        """Stop all pools."""
        self.change(())

    def _build(self, config: SharedCacheConfig, key: str) -> SharedCache:
        def model_path() -> str | None:
            for replica in self._registry.of_model(key):
                base = replica.facts.base
                if base is not None and base.root is not None:
                    return base.root
            return None

        match config:
            case LmcacheFsConfig():
                return LmcacheFs(config, key, model_path, self._log, self._now)
            case LmcacheCoordinatorConfig():
                transport = self._transport()
                return Coordinator(config, key, model_path, transport, self._log, self._now)
            case SharedEventsConfig():
                return StorageEvents(config, key, self._now)
            case AssumeWriteThroughConfig():
                return WriteThrough(config, key, self._now)
            case _:
                assert_never(config)


def _stop(pool: _Pool) -> None:
    for task in pool.tasks:
        task.cancel()
    pool.cache.close()
    pool.pressure.close()
