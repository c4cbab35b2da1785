"""Metrics of `warmroute serve --workers N`: its own, beside the sum over its workers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from gateway.observability.declaring import Across, Group


class WorkerMetrics(Group):
    """How the processes are that the supervisor keeps."""

    def __init__(self) -> None:
        super().__init__(CollectorRegistry())
        self.workers = self._gauge(
            "workers",
            "Worker processes by state: `starting`, `serving`, `waiting` for their next start; "
            "only with `--workers`.",
            "state",
            Across.SUM,
        )
        self.restarts = self._counter(
            "worker_restarts",
            "Worker processes that ended by themselves, or were ended as they did not answer; "
            "only with `--workers`.",
            "",
        )
        self.server_restarts = self._counter(
            "shared_server_restarts",
            "Times that the embedded server of the workers ended by itself; only with `--workers`.",
            "",
        )

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
