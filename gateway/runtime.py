"""One gateway: wires its parts, starts them in order and stops them in reverse."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from random import Random

import httpx

from gateway.admission import Admission
from gateway.api.access import Keys
from gateway.api.admin import build_admin_app
from gateway.api.asgi import AsgiApp
from gateway.api.keyfile import load_all_keys, watch_keys
from gateway.api.openai import PublicApi
from gateway.api.public import build_public_app
from gateway.config.models import GatewayConfig
from gateway.fleet import FleetView, build_models, replica_builder
from gateway.http import ConnectionLimits, allowed_connections
from gateway.index.memory import MemoryIndex
from gateway.kvevents.follow import Followers
from gateway.kvevents.subscriber import Context
from gateway.models import Models
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.observability.record import Observer
from gateway.pipeline import Pipeline
from gateway.placement import Placer
from gateway.proxy.relay import Relay
from gateway.proxy.retry import RetryBudget
from gateway.proxy.tls import client_context
from gateway.proxy.transport import Deadlines, HttpToolsTransport
from gateway.replicas.discovery.kinds import discoveries
from gateway.replicas.health import Prober, ProbeTimes
from gateway.replicas.membership import Membership
from gateway.replicas.registry import Registry, Replica, ReplicaState
from gateway.server import Server, bind, duplicates, url_of
from gateway.stored import Stored
from routing.load import LoadBook
from routing.types import ReplicaId

# Predictions kept at most, in (block, replica) pairs: what 80 requests a second of 200 blocks
# predict in the 120 s that a replica without events gets.
MAX_PREDICTED = 2_000_000


class Gateway:
    """A gateway, from its configuration.

    Args:
        config: Validated.
        log: Where events go.

    Raises:
        ConfigError: The key file cannot be used.
        TlsError: A certificate or key cannot be used.
        ListenError: One of its addresses cannot be bound.
    """

    def __init__(self, config: GatewayConfig, log: EventLog) -> None:
        self._config = config
        self._log = log
        self._metrics = Metrics()
        self._stopping = asyncio.Event()
        self._tls = [client_context(model.tls) for model in config.models]
        self._keys = load_all_keys(config.auth, os.environ)
        self._public_socket = bind(config.listen.host, config.listen.port)
        try:
            self._admin_socket = bind(config.admin.host, config.admin.port)
        except BaseException:
            self._public_socket.close()
            raise

    @property
    def url(self) -> str:
        """Where the public listener is reached from this machine."""
        return url_of(self._public_socket, "https" if self._config.listen.tls else "http")

    @property
    def admin_url(self) -> str:
        """Where the admin listener is reached from this machine."""
        return url_of(self._admin_socket)

    def stop(self) -> None:
        """Let running requests end, then return from `run`."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop`."""
        async with AsyncExitStack() as stack:
            public, admin = await self._wire(stack)
            # What start-up made stays until the end. A collector that walks it again and again
            # (transformers alone leaves half a million objects) costs a fifth of a short request.
            gc.collect()
            gc.freeze()
            await self._serve(public, admin)

    async def _wire(self, stack: AsyncExitStack) -> tuple[Server, Server]:
        """Build all parts; `stack` stops what runs, last started first."""
        # Not the loop's own clock: uvloop's ticks in whole milliseconds.
        config, now = self._config, time.monotonic
        executor = ThreadPoolExecutor(config.prepare.threads, "prepare")
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        models = await build_models(config, executor, self._metrics, self._log)
        registry = Registry((), config.ejection, now, self._log_state)
        index = MemoryIndex(config.index.max_blocks, MAX_PREDICTED, now)
        book = LoadBook()
        context = Context()
        stack.callback(context.destroy, linger=0)
        followers = Followers(index, context, config.index.max_blocks)
        stack.callback(followers.close)
        self._start_discovery(stack, models, registry, followers, book)
        placer = Placer(registry, book, index, config.index, Random(), now)
        relay = self._relay(stack, registry, book, placer)
        pipeline = Pipeline(models, registry, index, placer, relay, config, now)
        view = FleetView(models, registry, book, index, followers, self._metrics, now)
        public = self._public(stack, pipeline, build_public_app(models, self._ready(registry)))
        admin = build_admin_app(pipeline, view, self._metrics, config.limits.max_body_bytes)
        limits = ConnectionLimits(
            allowed_connections(config.limits.max_connections),
            config.limits.max_header_bytes,
            config.timeouts.receive_s,
        )
        drain_s = config.timeouts.drain_s
        return Server(public, drain_s, limits, config.listen.tls), Server(admin, drain_s, limits)

    def _relay(
        self, stack: AsyncExitStack, registry: Registry, book: LoadBook, placer: Placer
    ) -> Relay:
        config, times = self._config, self._config.timeouts
        transport = HttpToolsTransport(time.monotonic)
        stack.callback(transport.close)
        return Relay(
            registry=registry,
            book=book,
            placer=placer,
            transport=transport,
            stored=Stored(),
            budget=RetryBudget(config.retries.budget_ratio),
            deadlines=Deadlines(times.connect_s, times.first_byte_s, times.idle_s),
            heartbeat_s=times.heartbeat_s,
            max_tries=config.retries.max_tries,
            decision_headers=config.decision_headers,
            keeps_credentials=not config.auth.required,
            rng=Random(),
            now=time.monotonic,
        )

    def _public(self, stack: AsyncExitStack, pipeline: Pipeline, others: AsgiApp) -> PublicApi:
        config = self._config
        keys = Keys(config.auth.required, time.monotonic)
        keys.replace(self._keys)
        watching = asyncio.create_task(watch_keys(config.auth, keys, self._log))
        stack.callback(watching.cancel)
        log = self._log if config.logging.requests else None
        observer = Observer(self._metrics, log, time.monotonic)
        admission = Admission(config.limits)
        return PublicApi(pipeline, others, keys, admission, observer, self._log, config)

    def _start_discovery(
        self,
        stack: AsyncExitStack,
        models: Models,
        registry: Registry,
        followers: Followers,
        book: LoadBook,
    ) -> None:
        """Follow every model's discoveries; each replica is probed from when it joins."""
        prober = self._prober(models, registry, followers)
        probes: dict[ReplicaId, asyncio.Task[None]] = {}

        def joined(replica: Replica) -> None:
            name = f"probe {replica.replica_id}"
            probes[replica.replica_id] = asyncio.create_task(prober.run(replica), name=name)

        def left(replica: Replica) -> None:
            probes.pop(replica.replica_id).cancel()
            followers.unfollow(replica)
            book.forget(replica.replica_id)

        for model, tls in zip(self._config.models, self._tls, strict=True):
            membership = Membership(registry, replica_builder(model, tls), joined, left)
            found = discoveries(model, time.monotonic, Random())
            for source, (kind, discovery) in enumerate(found):
                following = membership.follow(source, discovery)
                task = asyncio.create_task(following, name=f"discovery {kind}")
                stack.callback(task.cancel)
        stack.callback(lambda: [task.cancel() for task in probes.values()])

    def _prober(self, models: Models, registry: Registry, followers: Followers) -> Prober:
        health = self._config.health

        def learned(replica: Replica, restarted: bool) -> None:
            models.learn(replica.model_key, replica.facts.models)
            followers.follow(replica, restarted=restarted)

        times = ProbeTimes(
            health.interval_s, health.timeout_s, health.failures_to_eject, health.metrics_interval_s
        )
        return Prober(_control_client, registry, times, learned)

    async def _serve(self, public: Server, admin: Server) -> None:
        """Serve both listeners; the public one stops first, so that its drain can be watched."""
        serving_admin = asyncio.create_task(admin.serve(sockets=[self._admin_socket]))
        listening = [self._public_socket, *duplicates(self._public_socket)]
        serving_public = asyncio.create_task(public.serve(sockets=listening))
        self._log.info("ready", url=self.url, admin_url=self.admin_url)
        stopping = asyncio.create_task(self._stopping.wait())
        ended = {stopping, serving_public, serving_admin}
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        self._log.info("stopping", drain_s=self._config.timeouts.drain_s)
        self._stopping.set()
        public.stop()
        await serving_public
        admin.stop()
        await serving_admin
        self._log.info("stopped")

    def _ready(self, registry: Registry) -> Callable[[], bool]:
        def is_ready() -> bool:
            some = any(replica.state is ReplicaState.READY for replica in registry)
            return some and not self._stopping.is_set()

        return is_ready

    def _log_state(self, replica: Replica) -> None:
        say = self._log.info if replica.state is ReplicaState.READY else self._log.warning
        say(
            "replica_state",
            replica=replica.replica_id,
            state=replica.state.value,
            reason=replica.state_reason,
        )


def _control_client(tls: ssl.SSLContext | None) -> httpx.AsyncClient:
    # No proxy settings and no .netrc from the environment: replicas are reached directly.
    return httpx.AsyncClient(verify=tls or False, trust_env=False)
