"""Keeps the replicas of every pool as the configuration and its discoveries say."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from gateway.background import Background, Work
from gateway.building import replica_builder
from gateway.config.fleet import ModelConfig, model_key
from gateway.kvevents.follow import Followers
from gateway.models import Models
from gateway.observability.logging import EventLog
from gateway.proxy.transport import HttpToolsTransport
from gateway.replicas.discovery.base import Found
from gateway.replicas.discovery.kinds import Section, build, kind_of, sections_of
from gateway.replicas.discovery.static import StaticDiscovery
from gateway.replicas.feeds import Feed, Feeds
from gateway.replicas.findings import Findings
from gateway.replicas.health import Prober, ProbeTimes
from gateway.replicas.membership import Membership
from gateway.replicas.registry import Registry, Replica, ReplicaState
from routing.load import LoadBook
from routing.types import ReplicaId


@dataclass(slots=True, eq=False)
class _Source:
    section: Section
    number: int
    feed: Feed
    task: asyncio.Task[None]


@dataclass(slots=True, eq=False)
class _Pool:
    membership: Membership
    sources: list[_Source] = field(default_factory=list)


class Following:
    """The replicas of all pools: found, probed, asked what they are, and let go.

    Args:
        registry: Takes them.
        followers: Follow their KV events.
        book: Forgets those that are gone.
        transport: Of the data path: lets go of connections to those that are gone.
        background: Runs discoveries and probes.
        log: Told of what operators have to know.
        now: Monotonic seconds.

    Attributes:
        feeds: Every discovery that is followed.
    """

    def __init__(
        self,
        registry: Registry,
        followers: Followers,
        book: LoadBook,
        transport: HttpToolsTransport,
        background: Background,
        log: EventLog,
        now: Callable[[], float],
    ) -> None:
        self.feeds = Feeds(log)
        self._registry = registry
        self._followers = followers
        self._book = book
        self._transport = transport
        self._background = background
        self._now = now
        self._models = Models((), ())
        self._findings = Findings(registry, lambda key: self._models[key].names, log)
        probes = partial(HttpToolsTransport, now)
        self._prober = Prober(probes, registry, ProbeTimes(), self._learned, background, log)
        self._pool_by_key: dict[str, _Pool] = {}
        self._probe_by_replica: dict[ReplicaId, asyncio.Task[None]] = {}
        self._num_sources = 0

    @property
    def all_synced(self) -> bool:
        """Whether every discovery has told once what there is."""
        return all(
            pool.membership.has_synced(source.number)
            for pool in self._pool_by_key.values()
            for source in pool.sources
        )

    def change(
        self,
        models: Models,
        sections: Sequence[ModelConfig],
        times: ProbeTimes,
        tls_by_key: Mapping[str, ssl.SSLContext],
    ) -> None:
        """Follow what a configuration says from now on; the first one, or another one.

        Replicas that are still found stay as they are, with their load and their cache entries.

        Args:
            models: Learn what replicas serve.
            sections: The configuration's models.
            times: Of the probes.
            tls_by_key: How to speak TLS to the replicas of each pool.
        """
        keys = {model_key(section) for section in sections}
        for key in self._pool_by_key.keys() - keys:
            self._close(key)
        models.inherit(self._models)
        self._models = models
        self._prober.times = times
        for section in sections:
            key = model_key(section)
            self._change_pool(key, section, replica_builder(section, tls_by_key[key]))
        self._findings.configured()

    def close(self) -> None:
        """Stop all tasks."""
        for pool in self._pool_by_key.values():
            for source in pool.sources:
                source.task.cancel()
        for probe in self._probe_by_replica.values():
            probe.cancel()

    def _change_pool(self, key: str, section: ModelConfig, builder: Callable[..., Replica]) -> None:
        pool = self._pool_by_key.get(key)
        if pool is None:
            refused = partial(self._refused, key)
            membership = Membership(self._registry, builder, self._joined, self._left, refused)
            pool = self._pool_by_key[key] = _Pool(membership)
        for fresh in pool.membership.rebuild(builder):
            self._configure(fresh)
        before = {id(source): source for source in pool.sources}
        pool.sources = []
        for wanted in sections_of(section):
            kept = next((source for source in before.values() if source.section == wanted), None)
            if kept is not None:
                del before[id(kept)]
            pool.sources.append(kept or self._start(key, pool.membership, wanted))
        for source in before.values():
            self._stop(source)
        numbers = [source.number for source in pool.sources]
        pool.membership.retire([source.number for source in before.values()], numbers)

    def _start(self, key: str, membership: Membership, section: Section) -> _Source:
        number = self._num_sources
        self._num_sources += 1
        kind, discovery = kind_of(section), build(section, self._now, Random())
        if isinstance(discovery, StaticDiscovery):
            membership.apply(number, discovery.snapshot)  # at once: no list is empty for a moment
        feed = self.feeds.add(key, kind, discovery)
        following = partial(self._follow, membership, number, feed, section)
        task = self._background.start(Work.DISCOVERY, following, f"{key} {kind}")
        return _Source(section, number, feed, task)

    async def _follow(
        self, membership: Membership, number: int, feed: Feed, section: Section
    ) -> None:
        try:
            await membership.follow(number, feed.discovery)
        except Exception:
            # A new one asks anew; of this one nobody knows what a bug has left.
            feed.discovery = build(section, self._now, Random())
            raise

    def _stop(self, source: _Source) -> None:
        source.task.cancel()
        self.feeds.remove(source.feed)

    def _close(self, key: str) -> None:
        pool = self._pool_by_key.pop(key)
        for source in pool.sources:
            self._stop(source)
        pool.membership.retire([source.number for source in pool.sources], ())

    def _configure(self, fresh: Replica) -> None:
        """Take over what the configuration says of a replica that is there."""
        replica = self._registry[fresh.replica_id]
        if self._registry.configure(replica, fresh):
            # What it holds is known by other keys, or from elsewhere, from now on.
            self._followers.unfollow(replica)
            self._followers.follow(replica, restarted=False)

    def _joined(self, replica: Replica) -> None:
        probing = partial(self._prober.run, replica)
        task = self._background.start(Work.PROBE, probing, replica.replica_id)
        self._probe_by_replica[replica.replica_id] = task

    def _left(self, replica: Replica) -> None:
        self._probe_by_replica.pop(replica.replica_id).cancel()
        self._followers.unfollow(replica)
        self._findings.left(replica)
        self._book.forget(replica.replica_id)
        self._models.forget(replica)
        self._transport.forget(replica.origin)
        for pool in self._pool_by_key.values():
            pool.membership.freed(replica.url)

    def _refused(self, key: str, found: Found, _: Replica) -> None:
        """Tell it unless its owner lets go in this step, as where two pools swap addresses."""
        asyncio.get_running_loop().call_soon(self._tell_refused, key, found)

    def _tell_refused(self, key: str, found: Found) -> None:
        owner = next((one for one in self._registry if one.url == found.url), None)
        if owner is not None and owner.model_key != key:
            self._findings.refused(key, found, owner)

    def _learned(self, replica: Replica, restarted: bool) -> None:
        pool = self._pool_by_key.get(replica.model_key)
        if pool is not None:
            pool.membership.learned(replica)
        if replica.state is ReplicaState.GONE:
            return  # its ranks are replicas now
        self._models.learn(replica)
        self._findings.learned(replica)
        if restarted:
            self._registry.begin_anew(replica)
        self._followers.follow(replica, restarted=restarted)
