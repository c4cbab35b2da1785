"""The metrics of `warmroute l2-janitor`, a process of its own. Part of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server


class JanitorMetrics:
    """What the janitor found and did, by directory (label `path`: those of its command line)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.files = self._gauge(
            "files",
            "Files found in the last round, by kind: `lmcache`, `temporary` (being written, or "
            "left by a writer that died), `leftover` (of those, the latter), `other` and "
            "`unreadable` (never touched).",
            "path kind",
        )
        self.bytes = self._gauge("bytes", "Bytes of those.", "path kind")
        self.oldest = self._gauge(
            "oldest_seconds", "Since the last use of the file that was used least recently.", "path"
        )
        self.size = self._gauge("size_bytes", "Size of the file system.", "path")
        self.free = self._gauge("free_bytes", "Free of that, before the last round.", "path")
        self.deleted_files = self._counter("deleted_files", "Files deleted.", "path")
        self.deleted_bytes = self._counter("deleted_bytes", "Bytes of those.", "path")
        self.failures = self._counter(
            "failures",
            "Files that could not be deleted, and rounds that could not be done.",
            "path",
        )
        self.over = self._gauge(
            "over_bytes", "By how much the limits are passed after the last round.", "path"
        )
        self.stalled = self._gauge("stalled", "1 while the mount does not answer, else 0.", "path")
        self.round_s = self._gauge("round_seconds", "Duration of the last round.", "path")
        self.finished = self._gauge(
            "last_round_timestamp_seconds", "When the last round ended, seconds since 1970.", "path"
        )
        self.dry_run = Gauge(
            "warmroute_l2_janitor_dry_run",
            "1 where nothing is ever deleted (no --delete).",
            registry=self.registry,
        )

    def _gauge(self, name: str, text: str, labels: str) -> Gauge:
        return Gauge(f"warmroute_l2_janitor_{name}", text, labels.split(), registry=self.registry)

    def _counter(self, name: str, text: str, labels: str) -> Counter:
        return Counter(f"warmroute_l2_janitor_{name}", text, labels.split(), registry=self.registry)


@contextmanager
def served(metrics: JanitorMetrics, host: str, port: int) -> Iterator[int]:
    """Serve the metrics at /metrics while the context is open.

    Args:
        metrics: What to serve.
        host: Address to listen on.
        port: 0 for any.

    Yields:
        The port.

    Raises:
        OSError: It is taken.
    """
    server, thread = start_http_server(port, host, metrics.registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
