"""Puts a request's path together: from a configuration, around what outlives it.

A reload builds all of this again and swaps one reference. Requests that run keep the objects they
began with, and both book on the same load book, index and connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gateway.admission import Admission
from gateway.api.access import Keys
from gateway.api.asgi import AsgiApp
from gateway.api.openai import PublicApi
from gateway.config.models import GatewayConfig
from gateway.index.base import PrefixIndex
from gateway.l2.pools import SharedPools
from gateway.models import Models
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.observability.record import Observer, Word
from gateway.pipeline import Pipeline
from gateway.placement import Placer
from gateway.proxy.relay import Relay
from gateway.proxy.retry import RetryBudget
from gateway.proxy.transport import Deadlines, Transport
from gateway.replicas.registry import Registry
from gateway.shared.pace import Pace
from gateway.sharing import Sharing
from gateway.stored import Stored
from routing.load import LoadBook, Loads


@dataclass(frozen=True, slots=True)
class Parts:
    """What outlives a configuration: books, connections, and what was learned.

    Attributes:
        book: What this gateway has at the replicas.
        loads: What all gateways have there.
        pace: When this gateway hears the others; None where there are none.
        shared_pools: What is known of the pools that models' replicas share.
        now: Monotonic seconds.
    """

    registry: Registry
    index: PrefixIndex
    shared_pools: SharedPools
    book: LoadBook
    loads: Loads
    pace: Pace | None
    transport: Transport
    stored: Stored
    budget: RetryBudget
    keys: Keys
    admission: Admission
    metrics: Metrics
    word: Word
    log: EventLog
    rng: Random
    now: Callable[[], float]


def build_pipeline(parts: Parts, models: Models, config: GatewayConfig) -> Pipeline:
    """Return what takes requests from a client to a replica and answers back."""
    registry, book, index, now = parts.registry, parts.book, parts.index, parts.now
    placer = Placer(registry, book, parts.loads, index, config.index, parts.rng, now)
    times = config.timeouts
    relay = Relay(
        registry=registry,
        book=book,
        placer=placer,
        transport=parts.transport,
        stored=parts.stored,
        budget=parts.budget,
        deadlines=Deadlines(times.connect_s, times.first_byte_s, times.idle_s),
        heartbeat_s=times.heartbeat_s,
        max_tries=config.retries.max_tries,
        decision_headers=config.decision_headers,
        keeps_credentials=not config.auth.required,
        rng=parts.rng,
        now=now,
    )
    sharing = Sharing(registry, parts.rng)
    return Pipeline(models, sharing, registry, index, parts.pace, placer, relay, config, now)


def build_public_api(parts: Parts, pipeline: Pipeline, others: AsgiApp) -> PublicApi:
    """Return the application of the public listener.

    Args:
        parts: What outlives a configuration.
        pipeline: Serves the routed paths, by its configuration.
        others: Serves all other paths.
    """
    config = pipeline.config
    log = parts.log if config.logging.requests else None
    observer = Observer(parts.metrics, log, parts.word, parts.now)
    return PublicApi(pipeline, others, parts.keys, parts.admission, observer, parts.log, config)
