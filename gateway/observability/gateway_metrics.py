"""The metrics of several gateways that act as one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.observability.declaring import Across, Group


class GatewayMetrics(Group):
    """What this gateway knows of the others, and what is its part."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.live = self._gauge(
            "gateways", "Gateways that are there, as this one sees it.", "", Across.MAX
        )
        self.age = self._gauge(
            "exchange_age_seconds",
            "Time since this gateway last heard the others; it asks ten times a second at least. "
            "0 with the index in memory.",
            "",
            Across.MAX,
        )
        self.alone = self._gauge(
            "exchange_lost",
            "1 where there was nobody to exchange with for so long that this gateway follows all "
            "replicas by itself.",
            "",
            Across.MAX,
        )
        self.owned = self._gauge(
            "replicas_owned",
            "Replicas whose KV events this gateway follows for all; each has one such gateway.",
            "",
            Across.SUM,
        )
        self.owner_changes = self._counter(
            "replica_owner_changes",
            "Times that this gateway `gained` a replica, or `lost` it to another one.",
            "replica change",
        )
        self.in_flight = self._gauge(
            "replica_fleet_in_flight_requests",
            "Requests in flight from all gateways, as this one sees it when it decides.",
            "replica",
            Across.MAX,
        )
        self.skew = self._gauge(
            "fleet_skew_ratio",
            "Max over mean in-flight requests of all gateways across ready replicas, relative to "
            "their weights; 1 when idle.",
            "model",
            Across.MAX,
        )
