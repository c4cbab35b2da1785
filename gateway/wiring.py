"""All parts of a running gateway, and how a configuration is put in force in them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from random import Random

from gateway.admission import Admission
from gateway.api.access import Keys
from gateway.api.admin import build_admin_app
from gateway.api.admin_shared import shared_routes
from gateway.api.keyfile import load_all_keys, watch_keys
from gateway.api.public import build_public_app
from gateway.assembly import Parts, build_pipeline, build_public_api
from gateway.background import Background, Work
from gateway.building import Tokenizers, build_models
from gateway.certificates import Certificates
from gateway.company import Company, keep_company
from gateway.config.errors import ConfigError, Problem
from gateway.config.models import GatewayConfig
from gateway.fleet import Departed, FleetView
from gateway.kvevents.follow import Followers
from gateway.kvevents.subscriber import Context
from gateway.l2.pools import SharedPools
from gateway.listeners import Listeners
from gateway.models import Models
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.pipeline import Pipeline
from gateway.prompting import Prompting
from gateway.proxy.retry import RetryBudget
from gateway.proxy.tls import TlsError
from gateway.proxy.transport import HttpToolsTransport
from gateway.readiness import DISCOVERY_PATIENCE_S, Readiness
from gateway.reload import Commit, Reloader
from gateway.replicas.following import Following
from gateway.replicas.health import probe_times
from gateway.replicas.operations import Operations
from gateway.replicas.registry import Registry, Replica, ReplicaState
from gateway.replicas.word import EngineWord
from gateway.stored import Stored
from gateway.threads import give_way
from routing.load import LoadBook


class Wiring:
    """The parts of one gateway. Made inside the running event loop.

    The first configuration is put in force as any later one: `prepare` builds all that can fail
    and may wait, and what it returns swaps everything in one step without a wait.

    Args:
        config: What is read once: sizes of threads and maps.
        listeners: Are given what they serve by.
        certificates: Loaded once with `config`.
        metrics: Of the gateway.
        log: Of the gateway.
        stack: Stops what runs, last started first.
    """

    def __init__(
        self,
        config: GatewayConfig,
        listeners: Listeners,
        certificates: Certificates,
        metrics: Metrics,
        log: EventLog,
        stack: AsyncExitStack,
    ) -> None:
        # Not the loop's own clock: uvloop's ticks in whole milliseconds.
        now = time.monotonic
        self._config = config
        self._listeners, self._certificates = listeners, certificates
        self._metrics, self._log, self._stack = metrics, log, stack
        self._background = background = Background(log, metrics.background)
        self._executor = ThreadPoolExecutor(config.prepare.threads, "prepare", give_way)
        stack.callback(self._executor.shutdown, wait=False, cancel_futures=True)
        self._tokenizers = Tokenizers(log, config.prepare.cache_bytes)
        metrics.prompts.follow(self._tokenizers.cache)
        registry = Registry((), config.ejection, now, self._note_state)
        self._departed = Departed(registry, metrics)
        book = LoadBook()
        self._company = company = self._keep_company(book)
        context, index = Context(), company.index
        stack.callback(context.destroy, linger=0)
        max_blocks, division = config.index.max_blocks, company.division
        self._followers = Followers(index, context, max_blocks, now, division, background)
        stack.callback(self._followers.close)
        transport = HttpToolsTransport(now)
        stack.callback(transport.close)
        pools = self._share_pools(registry, now)
        self._following = Following(
            registry, self._followers, book, transport, background, log, now
        )
        stack.callback(self._following.close)
        self._parts = Parts(
            registry=registry,
            index=index,
            shared_pools=pools,
            book=book,
            loads=company.loads,
            pace=company.shared.pace if company.shared else None,
            transport=transport,
            stored=Stored(company.elsewhere),
            budget=RetryBudget(config.retries.budget_ratio),
            keys=Keys(config.auth.required, now),
            admission=Admission(config.limits),
            metrics=metrics,
            word=EngineWord(registry, self._followers.distrust, log, now),
            log=log,
            rng=Random(),
            now=now,
        )
        self._prompting = Prompting(self._parts, self._executor, config.prepare)
        stack.callback(self._stop_prompting)
        self._readiness = self._readiness_of(registry)
        self._pipeline: Pipeline = build_pipeline(self._parts, Models((), ()), config)
        self._others = build_public_app(lambda: self._pipeline.models, self._why_not_ready)
        self._started = False

    async def start(self, reloader: Reloader) -> None:
        """Put the first configuration in force, and watch for the next ones.

        Raises:
            ConfigError: It cannot be used.
        """
        (await self.prepare(self._config))()
        parts, shared, exchange = self._parts, self._company.shared, None
        if shared is not None:
            exchange = shared.begin(
                parts.registry,
                self._followers,
                parts.keys,
                parts.shared_pools,
                self._metrics,
                self._background,
                self._log,
            )
            self._stack.push_async_callback(exchange.close)
        feeds = self._following.feeds
        view = FleetView(parts, lambda: self._pipeline.models, self._followers, feeds, exchange)
        operations = Operations(
            parts.registry, parts.book, parts.loads, self._log, parts.now, exchange
        )
        admin = build_admin_app(
            lambda: self._pipeline, parts.keys, view, operations, reloader, self._why_not_ready
        )
        admin.include_router(shared_routes(parts.shared_pools, exchange, self._log))
        self._listeners.admin.give(admin)
        for work, watch in (
            (Work.RELOAD, reloader.watch),
            (Work.KEYS, partial(watch_keys, lambda: self._config.auth, parts.keys, self._log)),
            (Work.DISCOVERY_PROBLEMS, self._following.feeds.watch),
        ):
            self._stack.callback(self._background.start(work, watch).cancel)

    async def prepare(self, config: GatewayConfig) -> Commit:
        """Build what a configuration needs; see `gateway.reload.Prepare`."""
        try:
            contexts = self._certificates.load(config)
        except TlsError as error:
            raise _unusable(error) from None
        keys = await asyncio.to_thread(load_all_keys, config.auth, os.environ)
        prompting = Prompting(self._parts, self._executor, config.prepare)
        models = await build_models(
            config, self._tokenizers, self._executor, prompting, first=not self._started
        )
        pipeline = build_pipeline(self._parts, models, config)
        public = build_public_api(self._parts, pipeline, self._others)

        def commit() -> None:
            try:
                self._listeners.configure(config)
            except TlsError as error:
                raise _unusable(error) from None
            parts = self._parts
            self._config, self._pipeline = config, pipeline
            prompting.inherit(self._prompting)
            self._prompting.close()
            self._prompting = prompting
            parts.registry.ejection = config.ejection
            parts.admission.configure(config.limits)
            parts.budget.ratio = config.retries.budget_ratio
            parts.keys.required = config.auth.required
            parts.keys.replace(keys)
            self._log.set_level(config.logging.level)
            self._readiness = replace(self._readiness, min_replicas=config.health.ready_replicas)
            self._following.change(models, config.models, probe_times(config.health), contexts)
            self._tokenizers.cache.resize(config.prepare.cache_bytes)
            self._tokenizers.keep(model.tokenizer for model in config.models if model.tokenizer)
            parts.shared_pools.change(config.models, models)
            self._listeners.public.give(public)
            prompting.start()
            self._started = True

        return commit

    def _share_pools(self, registry: Registry, now: Callable[[], float]) -> SharedPools:
        transport = partial(HttpToolsTransport, now)
        pools = SharedPools(registry, transport, self._background, self._log, now)
        self._stack.callback(pools.close)
        # Else a gateway sees some replicas' events only, and the index has all.
        if self._company.shared is None:
            self._followers.take_shared = pools.take
        return pools

    def _keep_company(self, book: LoadBook) -> Company:
        return keep_company(
            self._config.index,
            book,
            self._metrics,
            self._background,
            self._log,
            self._stack,
            lookup_timeout_s=lambda: self._config.index.lookup_timeout_s,
            now=time.monotonic,
        )

    def _readiness_of(self, registry: Registry) -> Readiness:
        now = time.monotonic
        return Readiness(
            registry=registry,
            min_replicas=self._config.health.ready_replicas,
            all_synced=lambda: self._following.all_synced,
            is_stopping=self._listeners.is_stopping,
            patience_until=now() + DISCOVERY_PATIENCE_S,
            now=now,
        )

    def _stop_prompting(self) -> None:
        self._prompting.close()  # the one of the configuration that is in force then

    async def settled(self, patience_s: float) -> None:
        """Wait until all that can be known of replicas is; see `Readiness.settled`."""
        await self._readiness.settled(patience_s)

    def _why_not_ready(self) -> str | None:
        return self._readiness.why_not()

    def _note_state(self, replica: Replica) -> None:
        labels = (replica.replica_id, replica.state.value, replica.state_reason)
        self._metrics.fleet.changes.labels(*labels).inc()
        if replica.state is ReplicaState.GONE:
            self._departed.left(replica.replica_id)
        say = self._log.info if replica.state is ReplicaState.READY else self._log.warning
        say(
            "replica_state",
            replica=replica.replica_id,
            state=replica.state.value,
            reason=replica.state_reason,
        )


def _unusable(error: TlsError) -> ConfigError:
    return ConfigError([Problem("", "tls", str(error))])
