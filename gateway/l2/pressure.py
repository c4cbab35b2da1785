"""How full and how healthy the storage behind a shared pool is: read beside requests.

Curvine's masters and workers say it in their metrics, under names without a prefix that both use;
where nobody can be asked, the mount's own figures have to do.

Source:
    Curvine 0.4.1: MasterMetrics, WorkerMetrics.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.config.shared_cache import StorageConfig
from gateway.errors import UpstreamError
from gateway.l2.mount import Mount
from gateway.observability.logging import EventLog
from gateway.proxy.transport import Deadlines, Origin, Transport, UpstreamRequest

METRICS_PATH = b"/metrics"
# A page of Curvine's has some hundred lines.
MAX_PAGE_BYTES = 4 * 1024 * 1024
_STATUS_OK = 200
_SAMPLE = re.compile(rb"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?\s+([-+.\w]+)", re.MULTILINE)
# Only masters count workers.
_MASTERS_OWN = "worker_num"


@dataclass(frozen=True, slots=True)
class StorageState:
    """What is known of the storage; None where nobody told.

    Attributes:
        unreachable: Sources that did not answer the last time.
        evicted_files: Since the master began.
        written_bytes: Since the workers began, over all that answered.
    """

    unreachable: int = 0
    capacity_bytes: float | None = None
    used_bytes: float | None = None
    evicted_files: float | None = None
    evicted_bytes: float | None = None
    written_bytes: float | None = None
    lost_workers: float | None = None
    failed_disks: float | None = None


class Pressure:
    """Watches the storage of one pool.

    Args:
        config: Whom to ask, and how often.
        mount: Asked where no source is configured; None without one.
        transport: For sources; used for nothing else.
        log: Gets one line when workers or disks are lost, and one when they are back.
        model: For the log.

    Attributes:
        state: As of the last reading.
    """

    def __init__(
        self,
        config: StorageConfig,
        mount: Mount | None,
        transport: Transport,
        log: EventLog,
        model: str,
    ) -> None:
        self._config = config
        self._mount = mount
        self._transport = transport
        self._log = log
        self._model = model
        tls = ssl.create_default_context()
        self._origins = [Origin.of(url, tls) for url in config.metrics_urls]
        self._was_ill = False
        self.state = StorageState()

    async def run(self) -> None:
        """Read the sources for ever."""
        while True:
            await self.read()
            await asyncio.sleep(self._config.interval_s)

    async def read(self) -> None:
        """Read all sources once."""
        if self._origins:
            pages = await asyncio.gather(*(self._page(origin) for origin in self._origins))
            told = [page for page in pages if page is not None]
            state = storage_state(told)
            self.state = replace(state, unreachable=len(pages) - len(told))
        elif self._mount is not None:
            path = self._mount.paths[0]
            figures = await self._mount.ask(lambda: os.statvfs(path))
            if figures is not None:
                size = figures.f_frsize
                self.state = StorageState(
                    capacity_bytes=size * figures.f_blocks,
                    used_bytes=size * (figures.f_blocks - figures.f_bfree),
                )
        self._tell()

    async def _page(self, origin: Origin) -> bytes | None:
        timeout_s = self._config.timeout_s
        request = UpstreamRequest(b"GET", METRICS_PATH, [(b"user-agent", b"warmroute")], b"")
        deadlines = Deadlines(timeout_s, timeout_s, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._transport.request(origin, request, deadlines)
                try:
                    page = await response.read()
                    while not response.ended and len(page) < MAX_PAGE_BYTES:
                        page += await response.read()
                finally:
                    response.close()
        except (TimeoutError, UpstreamError, OSError):
            return None
        return page if response.status == _STATUS_OK else None

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _tell(self) -> None:
        told = (self.state.lost_workers, self.state.failed_disks)
        is_ill = any(told)
        if is_ill == self._was_ill or told == (None, None):
            return  # where nobody tells, nobody is well
        self._was_ill = is_ill
        fields = {
            "model": self._model,
            "lost_workers": self.state.lost_workers,
            "failed_disks": self.state.failed_disks,
        }
        if is_ill:
            self._log.warning("shared_storage_ill", **fields)
        else:
            self._log.info("shared_storage_well", **fields)


def storage_state(pages: Sequence[bytes]) -> StorageState:
    """Return what Curvine's pages say together.

    Args:
        pages: Of masters and workers, in any order. The cluster's figures are a master's; of
            several the largest counts, as only the leader has them.
    """
    parsed = [dict(_samples(page)) for page in pages]
    masters = [page for page in parsed if any(name == _MASTERS_OWN for name, _ in page)]
    workers = [page for page in parsed if page not in masters]
    cluster = masters or workers
    combine: Callable[[Sequence[float]], float] = max if masters else sum

    def of(found: Sequence[_Page], name: str, labels: str = "") -> float | None:
        told = [page[name, labels] for page in found if (name, labels) in page]
        return combine(told) if told else None

    written = [page["write_bytes", ""] for page in workers if ("write_bytes", "") in page]
    failed = [page["failed_disks", ""] for page in workers if ("failed_disks", "") in page]
    return StorageState(
        capacity_bytes=of(cluster, "capacity"),
        used_bytes=of(cluster, "fs_used"),
        evicted_files=of(masters, "eviction_files_deleted"),
        evicted_bytes=of(masters, "eviction_bytes_freed"),
        lost_workers=of(masters, _MASTERS_OWN, 'tag="lost"'),
        written_bytes=sum(written) if written else None,
        failed_disks=sum(failed) if failed else None,
    )


_Page = Mapping[tuple[str, str], float]


def _samples(page: bytes) -> Iterator[tuple[tuple[str, str], float]]:
    for name, labels, number in _SAMPLE.findall(page):
        try:
            yield (name.decode(), labels.decode("utf-8", "replace")), float(number)
        except ValueError:
            continue
