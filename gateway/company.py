"""Whether a gateway is alone or one of several, and what that makes of its parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.background import Background
from gateway.config.index import IndexConfig
from gateway.index.base import PrefixIndex
from gateway.index.memory import MemoryIndex
from gateway.kvevents.follow import Division, Undivided
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.stored import Elsewhere
from routing.block_map import BlockMap
from routing.load import LoadBook, Loads

if TYPE_CHECKING:
    from gateway.shared.shared import Shared

# Predictions kept at most, in (block, replica) pairs: what 80 requests a second of 200 blocks
# predict in the 120 s that a replica without events gets.
MAX_PREDICTED = 2_000_000


@dataclass(frozen=True, slots=True)
class Company:
    """What is another thing where there are several gateways.

    Attributes:
        index: Who holds which block.
        division: Whose KV events are followed here.
        loads: What the replicas have to do.
        elsewhere: Sessions and responses of other gateways; None where there are none.
        shared: The way to the others; None where there are none.
    """

    index: PrefixIndex
    division: Division
    loads: Loads
    elsewhere: Elsewhere | None = None
    shared: Shared | None = None


def keep_company(
    config: IndexConfig,
    book: LoadBook,
    metrics: Metrics,
    background: Background,
    log: EventLog,
    stack: AsyncExitStack,
    *,
    lookup_timeout_s: Callable[[], float],
    now: Callable[[], float],
) -> Company:
    """Return what a configuration says: a gateway that is alone, or one of those with its Redis.

    Args:
        config: Read once.
        book: What this gateway has at the replicas.
        metrics: Of the gateway.
        background: Keeps the link to Redis, and writes the index.
        log: Of the gateway.
        stack: Closes the way to the others.
        lookup_timeout_s: Returns what is in force now.
        now: Monotonic seconds.

    Raises:
        TlsError: A certificate or key of the link to Redis cannot be used.
    """
    blocks = BlockMap(config.max_blocks, MAX_PREDICTED)
    if config.backend == "memory":
        return Company(MemoryIndex(blocks, now), Undivided(), book)
    # The client takes 0.1 s to load, and only here.
    from gateway.index.redis import RedisIndex  # noqa: PLC0415
    from gateway.shared.shared import join  # noqa: PLC0415

    shared = join(config, book, metrics.redis, log, now, lookup_timeout_s)
    shared.link.start(background)
    stack.callback(shared.link.close)
    index = RedisIndex(
        link=shared.link,
        lives=shared.lives,
        blocks=blocks,
        timeout_s=lookup_timeout_s,
        entry_ttl_s=config.entry_ttl_s,
        metrics=metrics.shared_index,
        now=now,
    )
    index.start(background)
    stack.callback(index.close)
    return Company(index, shared.division, shared.loads, shared.whereabouts, shared)
