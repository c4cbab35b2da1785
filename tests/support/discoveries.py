"""Sources that discoveries follow, all with the same handles; and a follower of snapshots."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from random import Random

from gateway.config.discovery import (
    DnsDiscoveryConfig,
    FileDiscoveryConfig,
    KubernetesDiscoveryConfig,
)
from gateway.config.fleet import ReplicaConfig
from gateway.replicas.discovery.base import Found
from gateway.replicas.discovery.kinds import BUILD_BY_KIND
from tests.support import kubernetes
from tests.support.name_server import NameServer
from tests.support.replicas import until

SOON_S = 0.01
NAME = "engines.test"


def urls(num, first=1):
    return [f"http://10.0.{i // 200}.{i % 200}:8000" for i in range(first, first + num)]


class Source:
    """What one kind of discovery follows.

    Attributes:
        kind: Row of the table of kinds.
        section: Its configuration.
        changes: Whether it can change, break and heal.
        says: What `problem` holds while it is broken.
    """

    kind: str
    section: object
    changes = True
    says = ""

    def __init__(self, folder: Path):
        self.folder = folder

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def put(self, urls):
        """Let these be the replicas, from now on."""
        raise NotImplementedError

    async def break_(self):
        """Stop being readable."""

    async def heal(self):
        """Undo `break_`."""

    def num_open(self):
        """Return how many connections the discovery holds here."""
        return 0


class StaticSource(Source):
    kind = "static"
    changes = False

    async def put(self, urls):
        self.section = tuple(ReplicaConfig(url=url) for url in urls)

    def expected(self, urls):
        return {Found(one.url, one.id) for one in (ReplicaConfig(url=url) for url in urls)}


class FileSource(Source):
    kind = "file"
    says = "replicas.json:1: (file): not YAML"

    def __init__(self, folder):
        super().__init__(folder)
        self.path = folder / "replicas.json"
        self.section = FileDiscoveryConfig(kind="file", path=str(self.path), interval_s=SOON_S)

    async def put(self, urls):
        self.urls = urls
        replace(self.path, json.dumps(urls))

    async def break_(self):
        replace(self.path, '["http://10.0.0.1:80')

    async def heal(self):
        await self.put(self.urls)

    def expected(self, urls):
        return {Found(url) for url in urls}


class DnsSource(Source):
    kind = "dns"
    says = "engines.test"
    extra = {"port": 8000}  # noqa: RUF012 - nobody changes it

    def __init__(self, folder):
        super().__init__(folder)
        self.server = NameServer()

    async def __aenter__(self):
        await self.server.__aenter__()
        self.section = dns_section(self.server, **self.extra)
        return self

    async def __aexit__(self, *_):
        await self.server.__aexit__()

    async def put(self, urls):
        self.server.put(NAME, "A", *(url.split(":")[1][2:] for url in urls))

    async def break_(self):
        self.server.fail("SERVFAIL")

    async def heal(self):
        self.server.heal()

    def num_open(self):
        return self.server.num_open

    def expected(self, urls):
        return {Found(url) for url in urls}


class SrvSource(DnsSource):
    extra = {"service": "http"}  # noqa: RUF012 - nobody changes it
    says = "SRV _http._tcp.engines.test"

    async def put(self, urls):
        records = (f"0 0 {url.split(':')[2]} {url.split(':')[1][2:]}.{NAME}." for url in urls)
        self.server.put(f"_http._tcp.{NAME}", "SRV", *records)

    def expected(self, urls):
        return {Found(url.replace(":8000", f".{NAME}:8000")) for url in urls}


class ServiceSource(Source):
    """EndpointSlices of a Service."""

    kind = "kubernetes"
    says = "403"
    extra = {"service": kubernetes.SERVICE}  # noqa: RUF012 - nobody changes it

    def __init__(self, folder):
        super().__init__(folder)
        self.api = kubernetes.ApiServer()
        self.cluster = kubernetes.Cluster(self.api)

    async def __aenter__(self):
        await self.api.start()
        server = f"http://127.0.0.1:{self.api.port}"
        file = kubernetes.kubeconfig(self.folder, server)
        given = {"kind": "kubernetes", "port": 8000, "kubeconfig": file, **self.extra}
        self.section = KubernetesDiscoveryConfig.model_validate(given)
        return self

    async def __aexit__(self, *_):
        await self.api.stop()

    async def put(self, urls):
        addresses = [url.split(":")[1][2:] for url in urls]
        self.cluster.put(kubernetes.Pod(f"pod-{address}", address) for address in addresses)

    async def break_(self):
        for plural in kubernetes.KIND_BY_PLURAL:
            self.api.forbidden |= {("list", plural), ("watch", plural)}
        self.api.break_watches()

    async def heal(self):
        self.api.forbidden.clear()

    def num_open(self):
        return self.api.num_open

    def expected(self, urls):
        return {Found(url, f"pod-{url.split(':')[1][2:]}") for url in urls}


class PodSource(ServiceSource):
    """Pods by their labels."""

    extra = {"selector": kubernetes.SELECTOR}  # noqa: RUF012 - nobody changes it


def dns_section(server, **changes):
    given = {"min_ttl_s": SOON_S, "max_ttl_s": 4 * SOON_S, "timeout_s": 5.0}
    section = {"kind": "dns", "host": NAME, "servers": [server.address], **given, **changes}
    return DnsDiscoveryConfig.model_validate(section)


def replace(path, text):
    """Write a file as one should: whole, then renamed into place."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.rename(path)


class Follower:
    """Reads a discovery's snapshots in a task, and keeps them."""

    def __init__(self, discovery):
        self.discovery = discovery
        self.seen = []
        self.task = None

    async def _follow(self):
        async for snapshot in self.discovery.snapshots():
            self.seen.append(snapshot)

    @property
    def latest(self):
        return self.seen[-1] if self.seen else None

    @property
    def problem(self):
        return self.discovery.problem

    async def sees(self, expected):
        def has_come():
            assert not self.task.done(), self.task
            return self.latest == frozenset(expected)

        await until(has_come, f"the snapshot {sorted(map(str, expected))[:3]}...")

    async def says(self, text):
        await until(lambda: text in (self.problem or ""), f"{text!r} in the problem")

    async def is_well(self):
        await until(lambda: self.problem is None, "no problem")


@contextlib.asynccontextmanager
async def following(discovery):
    """Follow a discovery until the block ends, by cancellation as its real consumer does."""
    follower = Follower(discovery)
    follower.task = asyncio.create_task(follower._follow())
    try:
        yield follower
    finally:
        follower.task.cancel()
        await asyncio.wait([follower.task])
        assert follower.task.cancelled(), follower.task


def built(source, now=time.monotonic):
    return BUILD_BY_KIND[source.kind](source.section, now, Random(7))
