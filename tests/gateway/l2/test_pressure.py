"""What Curvine's metrics say of the storage behind a pool."""

import logging

from gateway.config.shared_cache import StorageConfig
from gateway.l2.base import PoolHealth
from gateway.l2.mount import Mount
from gateway.l2.pressure import Pressure, StorageState, storage_state
from gateway.l2.showing import show_shared, show_storage
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.proxy.transport import HttpToolsTransport
from tests.support.replicas import ScriptedReplica

MASTER = b"""\
# HELP capacity capacity
# TYPE capacity gauge
capacity 1000
fs_used 750
worker_num{tag="live"} 3
worker_num{tag="lost"} 1
eviction_files_deleted 12
eviction_bytes_freed 340
"""
WORKER = b"capacity 500\nfs_used 300\nwrite_bytes 77\nfailed_disks 1\n"


def test_a_masters_figures_are_the_clusters_and_workers_add_up():
    state = storage_state([WORKER, MASTER, WORKER])
    assert (state.capacity_bytes, state.used_bytes) == (1000, 750)
    assert (state.lost_workers, state.evicted_files, state.evicted_bytes) == (1, 12, 340)
    assert (state.written_bytes, state.failed_disks) == (154, 2)


def test_workers_alone_add_up():
    state = storage_state([WORKER, WORKER])
    assert (state.capacity_bytes, state.used_bytes, state.lost_workers) == (1000, 600, None)


def test_pages_of_somebody_else_say_nothing():
    assert storage_state([b"", b"not metrics at all\n", b"capacity much\n"]).capacity_bytes is None


class Log(EventLog):
    def __init__(self):
        super().__init__(logging.getLogger("test.pressure"))
        self.events = []

    def warning(self, event, **fields):
        self.events.append((event, fields["lost_workers"]))

    def info(self, event, **fields):
        self.events.append((event, fields["lost_workers"]))


class Source(ScriptedReplica):
    page = MASTER

    async def _probe(self, conversation):
        await conversation.answer(self.page)


async def test_a_source_that_is_away_is_counted_and_the_others_tell(engines):
    [source] = await engines(Source(None))
    urls = (source.url, "http://127.0.0.1:9")
    config = StorageConfig(metrics_urls=urls, timeout_s=5.0)
    log = Log()
    pressure = Pressure(config, None, HttpToolsTransport(lambda: 0.0), log, "m")
    await pressure.read()
    assert (pressure.state.unreachable, pressure.state.capacity_bytes) == (1, 1000)
    source.page = MASTER.replace(b'"lost"} 1', b'"lost"} 0')
    await pressure.read()
    assert log.events == [("shared_storage_ill", 1.0), ("shared_storage_well", 0.0)]
    pressure.close()


async def test_storage_that_tells_nothing_any_more_is_not_well_for_that(engines):
    [source] = await engines(Source(None))
    config = StorageConfig(metrics_urls=(source.url,), timeout_s=5.0)
    log = Log()
    pressure = Pressure(config, None, HttpToolsTransport(lambda: 0.0), log, "m")
    await pressure.read()
    source.page = b""
    await pressure.read()
    assert log.events == [("shared_storage_ill", 1.0)]
    pressure.close()


class SharedModel:
    key = "m"

    def __init__(self, shared):
        self.shared = shared


class Down:
    def health(self):
        return PoolHealth(known_chunks=7, down_reason="slow", num_downs=1)


def test_what_nobody_tells_any_more_has_no_sample():
    metrics = Metrics()
    show_shared(metrics.shared, SharedModel(Down()))
    show_storage(metrics.storage, SharedModel(None), StorageState(capacity_bytes=5.0))
    page = metrics.page().decode()
    assert 'warmroute_shared_cache_down{model="m"} 1.0' in page
    assert 'warmroute_shared_storage_capacity_bytes{model="m"} 5.0' in page
    show_shared(metrics.shared, SharedModel(None))
    show_storage(metrics.storage, SharedModel(None), StorageState(unreachable=1))
    page = metrics.page().decode()
    assert "shared_cache_down{" not in page
    assert "storage_capacity_bytes{" not in page
    assert 'warmroute_shared_storage_unreachable_sources{model="m"} 1.0' in page
    show_storage(metrics.storage, SharedModel(None), None)
    assert "sources{" not in metrics.page().decode()


async def test_without_sources_the_mount_says_how_full_it_is(tmp_path):
    mount = Mount([str(tmp_path)], 1, 5.0, lambda _: None)
    await mount.probe()
    pressure = Pressure(StorageConfig(), mount, HttpToolsTransport(lambda: 0.0), Log(), "m")
    await pressure.read()
    assert pressure.state.capacity_bytes > pressure.state.used_bytes > 0
    mount.close()
    pressure.close()
