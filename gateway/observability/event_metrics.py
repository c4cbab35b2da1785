"""Metrics of the KV events that feed the index."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.observability.declaring import Across, Group


class EventMetrics(Group):
    """How the KV events that feed the index are doing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.batches = self._gauge(
            "kv_event_batches", "KV event batches applied since start.", "replica", Across.SUM
        )
        self.gaps = self._gauge(
            "kv_event_gaps",
            "Times that batches were missing and asked for again.",
            "replica",
            Across.SUM,
        )
        self.losses = self._gauge(
            "kv_event_losses",
            "Times that missing batches were gone for good, so the replica's entries were dropped.",
            "replica",
            Across.SUM,
        )
        self.restarts = self._gauge(
            "kv_event_restarts",
            "Times that an engine began to count from 0 again.",
            "replica",
            Across.SUM,
        )
        self.missed = self._gauge(
            "kv_event_missed_batches",
            "Batches that did not come by themselves: lost, or dropped as they came too fast.",
            "replica",
            Across.SUM,
        )
        self.unreadable = self._gauge(
            "kv_event_unreadable",
            "Events left out as nobody can read them: whole batches and single events.",
            "replica",
            Across.SUM,
        )
        self.skipped = self._gauge(
            "kv_event_skipped_blocks",
            "Blocks of events left out, by why.",
            "replica reason",
            Across.SUM,
        )
        self.adopted = self._gauge(
            "kv_event_adopted_blocks",
            "Blocks that were left out as orphans and taken in when their parent came.",
            "replica",
            Across.SUM,
        )
        self._declare_views()

    def _declare_views(self) -> None:
        self.known = self._gauge(
            "kv_event_blocks", "Blocks that a replica's events say it holds.", "replica", Across.MAX
        )
        self.complete = self._gauge(
            "kv_event_complete",
            "1 where events tell all that a replica holds; 0 after a loss, until its cache was "
            "filled anew.",
            "replica",
            Across.MIN,
        )
        self.silent = self._gauge(
            "kv_event_silent",
            "1 where a replica should publish KV events and none comes, although it serves.",
            "replica",
            Across.MAX,
        )
