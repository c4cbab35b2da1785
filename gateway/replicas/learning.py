"""Reads what one replica says about itself, again and again, and notices another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gateway.engines import vllm
from gateway.errors import ReplicaTimeout, StreamBroken
from gateway.kvevents.subscriber import Source
from gateway.replicas import facts
from gateway.replicas.asking import Line
from gateway.replicas.facts import EnginePage, ReplicaFacts, ServedModel
from gateway.replicas.shared_address import FIRST_READINGS, AddressWatch

T = TypeVar("T")

# Readings of which one is over a new connection, to see whether it leads to another engine: two a
# minute. A TLS handshake with each reading would cost more than all else of 300 replicas' probes.
FRESH_EVERY = 3


class Learner:
    """Keeps one replica's facts current.

    Args:
        line: Asks it.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._address = AddressWatch()
        self._num_readings = 0
        self._is_whole = True

    async def learn(self, *, maybe_restarted: bool) -> tuple[bool, bool]:
        """Read the replica's facts; what it does not say now stays as it was.

        An engine that hides its metrics or its models is still a replica, and so is one whose
        metrics take too long: scraping is heavy work for a busy engine.

        Args:
            maybe_restarted: Read also what no process changes while it runs.

        Returns:
            Whether its engine is another process than before, and whether all pages came.

        Raises:
            ReplicaUnreachable: Nobody listens there any more.
        """
        self._is_whole = True
        replica = self._line.replica
        before = replica.facts
        page = await self._engine_page(fresh=maybe_restarted)
        learned = replace(
            before,
            models=await self._models(before.models),
            block_size=page.block_size or before.block_size,
            num_blocks=page.num_blocks or before.num_blocks,
            hash_algorithm=page.hash_algorithm or before.hash_algorithm,
            started_at=page.started_at or before.started_at,
            ranks=page.ranks or before.ranks,
            l1_evicted=before.l1_evicted if page.l1_evicted is None else page.l1_evicted,
        )
        is_other = learned.started_at != before.started_at
        if maybe_restarted or is_other:
            learned = await self._of_process(learned)
        replica.facts = learned
        replica.shared_address = self._address.finding
        # Behind a shared address, another process is another engine and not a restart.
        restarted = is_other and before.started_at is not None and not replica.shared_address
        return restarted, self._is_whole

    async def _engine_page(self, *, fresh: bool) -> EnginePage:
        """Read /metrics; the first time over several connections, each of its own."""
        fresh = fresh or self._num_readings % FRESH_EVERY == 0
        page = await self._page(fresh=fresh)
        self._address.read(page, fresh=fresh)
        if not self._num_readings and self._is_whole:
            self._address.resolved(await self._line.num_addresses())
            for _ in range(FIRST_READINGS - 1):
                if self._address.finding is None and page.started_at is not None:
                    self._address.read(await self._page(fresh=True), at_once=True)
        self._num_readings += self._is_whole
        return page

    async def _page(self, *, fresh: bool) -> EnginePage:
        if fresh:
            self._line.renew()
        return await self._ask(vllm.METRICS_PATH, facts.engine_page, EnginePage(), EnginePage())

    async def _models(self, before: tuple[ServedModel, ...]) -> tuple[ServedModel, ...]:
        return await self._ask(vllm.MODELS_PATH, facts.served_models, (), before)

    async def _of_process(self, learned: ReplicaFacts) -> ReplicaFacts:
        replica = self._line.replica
        version = await self._ask(vllm.VERSION_PATH, facts.version, None, learned.version)
        known = learned.kv_events if learned.tells_events else None
        # Since 0.31; before, only the configuration can tell.
        events: dict[int, Source] | None = await self._ask(
            vllm.KV_EVENT_SOURCES_PATH,
            lambda body: facts.kv_event_sources(body, replica.url),
            None,
            None if known is None else dict(known),
        )
        return replace(
            learned,
            version=version,
            ranks=learned.ranks or tuple(sorted(events or ())),
            kv_events=events or {},
            tells_events=events is not None,
        )

    async def _ask(self, path: str, parse: Callable[[bytes], T], hidden: T, before: T) -> T:
        """Return what a page says, `hidden` where it is not served, `before` if it did not come."""
        try:
            found = await self._line.ask(path, parse)
        except (TimeoutError, ReplicaTimeout, StreamBroken):
            self._is_whole = False
            return before
        return hidden if found is None else found
