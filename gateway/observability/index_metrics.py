"""The metrics of the index that several gateways share."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.observability.declaring import Across, Group


class SharedIndexMetrics(Group):
    """How the index in Redis is read and written; all 0 with the index in memory."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.lookups = self._counter(
            "index_lookups",
            "Look-ups in the shared index: `local` where this gateway follows all replicas, "
            "`shared` where Redis answered, else why it did not (`timeout`, `slow`, `down`, ...): "
            "those are decided by what is known here.",
            "result",
        )
        self.hot_hits = self._counter(
            "index_hot_lookups",
            "Look-ups whose beginning was answered from what was read a moment ago.",
            "",
        )
        self.queued = self._gauge(
            "index_queued_blocks", "Changes that wait to be written.", "", Across.SUM
        )
        self.written = self._counter(
            "index_written_blocks", "Changes that were written, in blocks, by kind.", "kind"
        )
        self.dropped = self._counter(
            "index_dropped_blocks",
            "Changes that were not written, in blocks, by why: `queue` (too many waited) or "
            "`failed`, after which the replica's entries are written anew in a life of their own; "
            "`unplaced` (nobody holds the block before, so only this gateway finds it); "
            "`predicted`.",
            "reason",
        )
        self.refused = self._counter(
            "index_refused_blocks",
            "Blocks that had no room in their segment, reported or predicted.",
            "kind",
        )
        self.rewrites = self._counter(
            "index_rewrites", "Times that all entries of a replica were written anew.", ""
        )
