"""Metrics of what goes on beside requests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.observability.declaring import Group


class BackgroundMetrics(Group):
    """How the tasks do that nobody waits for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.crashes = self._counter(
            "task_crashes",
            "Times that a task beside requests met a bug, or an error that nobody foresaw, and "
            "went on or was started again; the log says where.",
            "task",
        )
