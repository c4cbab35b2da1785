"""All that one gateway shares with others, put together."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from random import Random
from secrets import token_hex

from gateway.api.access import Keys
from gateway.background import Background
from gateway.config.index import IndexConfig
from gateway.kvevents.follow import Followers
from gateway.l2.pools import SharedPools
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.observability.redis_metrics import RedisMetrics
from gateway.redis.dialing import dialing_of
from gateway.redis.link import RedisLink
from gateway.redis.scripts import load_script
from gateway.replicas.registry import Registry
from gateway.shared.division import SharedDivision
from gateway.shared.ejections import Ejections
from gateway.shared.exchange import Exchange, Voices
from gateway.shared.flushes import Flushes
from gateway.shared.holds import Holds
from gateway.shared.lives import SharedLives
from gateway.shared.loads import SharedLoads
from gateway.shared.ownership import Ownership
from gateway.shared.pace import Pace
from gateway.shared.rates import Rates
from gateway.shared.whereabouts import Whereabouts
from routing.load import LoadBook

# Of a host's name in an id; a pod's may have 253, and it is in every row of the table.
_MAX_HOST_CHARS = 63


def gateway_id() -> str:
    """Return a name for this process that no other one has or had."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:_MAX_HOST_CHARS]
    return f"{host}-{token_hex(4)}"


class Shared:
    """What several gateways have in common, seen from one of them.

    Args:
        link: To Redis.
        book: What this gateway has at the replicas.
        now: Monotonic seconds.
        recall_deadline_s: Returns the seconds for a question on a request's path.

    Attributes:
        link: As given.
        gateway: This gateway's id.
        ownership: Which replicas are whose.
        lives: The same for the index.
        division: The same for the followers of KV events.
        loads: What all gateways have at the replicas.
        pace: When gateways tell and hear each other.
        whereabouts: Who opened which session and made which response.
    """

    def __init__(
        self,
        link: RedisLink,
        book: LoadBook,
        now: Callable[[], float],
        recall_deadline_s: Callable[[], float],
    ) -> None:
        self.link = link
        self._now = now
        self.gateway = gateway_id()
        self.ownership = Ownership(self.gateway)
        self.lives = SharedLives(self.ownership, now)
        self.division = SharedDivision(self.ownership)
        self.loads = SharedLoads(book)
        self.pace = Pace(now, Random())
        self.whereabouts = Whereabouts(link, recall_deadline_s)

    def begin(
        self,
        registry: Registry,
        followers: Followers,
        keys: Keys,
        pools: SharedPools,
        metrics: Metrics,
        background: Background,
        log: EventLog,
    ) -> Exchange:
        """Talk with the other gateways from now on.

        Args:
            registry: Takes what others say of replicas.
            followers: Follow what this gateway owns.
            keys: Take what others let in.
            pools: Forget what others were told to forget.
            metrics: Of the gateway.
            background: Runs it.
            log: Of the gateway.

        Returns:
            To be closed: then the others take over at once.
        """
        registry.gateway = self.gateway
        voices = Voices(
            loads=self.loads,
            division=self.division,
            ejections=Ejections(registry, self._now),
            holds=Holds(registry, self._now),
            rates=Rates(keys, self._now),
            flushes=Flushes(pools, log, time.time),
        )
        exchange = Exchange(
            call=self.link.call,
            script=load_script("gateway.shared", "lua/exchange.lua", writes=True),
            namespace=self.link.namespace,
            ownership=self.ownership,
            lives=self.lives,
            voices=voices,
            pace=self.pace,
            registry=registry,
            followers=followers,
            metrics=metrics.gateways,
            background=background,
            log=log,
            now=self._now,
            rng=Random(),
        )
        exchange.start()
        return exchange


def join(
    config: IndexConfig,
    book: LoadBook,
    metrics: RedisMetrics,
    log: EventLog,
    now: Callable[[], float],
    lookup_timeout_s: Callable[[], float],
) -> Shared:
    """Return what is shared with others, over a link that is not started yet.

    Raises:
        TlsError: A certificate or key of the link cannot be used.
    """
    dialing = dialing_of(config, now, Random(), lookup_timeout_s)
    link = RedisLink(dialing, config.namespace, metrics, log)
    return Shared(link, book, now, lookup_timeout_s)
