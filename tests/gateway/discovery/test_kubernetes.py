"""How the Kubernetes discovery asks: what it sends, how often, and with whose credentials."""

import asyncio
import subprocess
import sys
import time
from collections import Counter
from random import Random

import pytest

from gateway.config.discovery import KubernetesDiscoveryConfig
from gateway.replicas.discovery import kubernetes_api
from gateway.replicas.discovery.kubernetes import KubernetesDiscovery, WatchTimes
from tests.support.certificates import Authority
from tests.support.discoveries import following
from tests.support.kubernetes import (
    NAMESPACE,
    SERVICE,
    ApiServer,
    Cluster,
    kubeconfig,
    watched,
)
from tests.support.replicas import until

QUICK = WatchTimes(first_pause_s=0.01, longest_pause_s=0.05)


@pytest.fixture
async def api():
    async with ApiServer() as server:
        yield server


@pytest.fixture
def cluster(api):
    cluster = Cluster(api)
    cluster.add("a", "10.0.0.1")
    return cluster


@pytest.fixture
def discovery(api, tmp_path):
    """Build one that asks `api`: `discovery(times, **changes of the section)`."""

    def build(times=QUICK, **changes):
        section = {
            "kind": "kubernetes",
            "service": SERVICE,
            "port": "http",
            "kubeconfig": kubeconfig(tmp_path, f"http://127.0.0.1:{api.port}"),
            **changes,
        }
        config = KubernetesDiscoveryConfig.model_validate(section)
        return KubernetesDiscovery(config, time.monotonic, Random(7), times)

    return build


def verbs(api):
    return Counter(request.verb for request in api.requests)


async def test_it_lists_and_watches_from_there_by_label_in_the_contexts_namespace(
    api, cluster, discovery
):
    async with following(discovery()) as follower:
        await follower.sees(cluster.truth())
        await watched(api)
        version = str(api.version)
        listed, watch = api.requests
        label = f"kubernetes.io/service-name={SERVICE}"
        assert (listed.verb, listed.plural) == ("list", "endpointslices")
        assert listed.params == {"labelSelector": label}
        assert (watch.verb, watch.plural) == ("watch", "endpointslices")
        assert watch.params == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": label,
            "resourceVersion": version,
            "timeoutSeconds": "60",
        }


async def test_a_namespace_of_the_section_is_the_one_that_is_asked(cluster, discovery, tmp_path):
    built = discovery(namespace=NAMESPACE)
    # The test server knows only this one; the kubeconfig's own is another.
    file = tmp_path / "kubeconfig"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(f'"namespace": "{NAMESPACE}"', '"namespace": "other"'))
    async with following(built) as follower:
        await follower.sees(cluster.truth())


async def test_a_watch_that_ends_in_order_goes_on_from_a_bookmark_without_a_list(
    api, cluster, discovery
):
    async with following(discovery()) as follower:
        await follower.sees(cluster.truth())
        await watched(api)
        api.pass_by(50)
        api.bookmark()
        api.compact()
        api.end_watches()
        await until(lambda: verbs(api)["watch"] == 2, "a second watch")
        await watched(api)
        cluster.add("b", "10.0.0.2")
        await follower.sees(cluster.truth())
        assert api.requests[-1].params["resourceVersion"] == str(api.oldest)
        assert verbs(api) == {"list": 1, "watch": 2}


async def test_a_server_without_bookmarks_costs_a_list_and_no_truth(api, cluster, discovery):
    api.sends_bookmarks = False
    async with following(discovery()) as follower:
        await follower.sees(cluster.truth())
        await watched(api)
        api.pass_by(50)
        api.bookmark()
        api.compact()
        api.end_watches()
        await until(lambda: verbs(api)["list"] == 2, "a second list")
        await watched(api)
        assert follower.problem is None
        assert len(follower.seen) == 1


async def test_a_version_that_is_gone_is_no_problem_of_anybodys(api, cluster, discovery):
    async with following(discovery()) as follower:
        await follower.sees(cluster.truth())
        await watched(api)
        told = []
        api.compact()
        api.pass_by(50)
        api.compact()
        api.end_watches()

        def listed_again():
            told.append(follower.problem)
            return verbs(api)["list"] == 2

        await until(listed_again, "a second list")
        await watched(api)
        assert set(told) == {None}


@pytest.mark.parametrize("trouble", ["ends at once", "410 at once", "refused", "500"])
async def test_a_server_in_trouble_is_asked_ever_more_slowly(
    api, cluster, discovery, monkeypatch, trouble
):
    pauses = []
    sleep = asyncio.sleep

    async def noted(seconds, *rest):
        if seconds >= 0.1:  # a pause of the discovery: what tests wait for is shorter
            pauses.append(seconds)
            seconds = 0
        await sleep(seconds, *rest)

    def make(server):
        if trouble == "ends at once":
            server._watch = ends_at_once
        elif trouble == "410 at once":
            server._is_gone = lambda request: request.verb == "watch"
        else:
            server.refusals = Always((403 if trouble == "refused" else 500, ""))

    async def ends_at_once(peer, request):
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")

    monkeypatch.setattr(asyncio, "sleep", noted)
    make(api)
    times = WatchTimes(first_pause_s=1.0, longest_pause_s=30.0)
    async with following(discovery(times)):
        await until(lambda: len(pauses) >= 9, "nine pauses")
    for failures, pause_s in enumerate(pauses[:9]):
        assert min(30.0, 2**failures * 0.5) <= pause_s <= min(30.0, 2**failures)
    assert len({round(pause_s / 2**n, 6) for n, pause_s in enumerate(pauses[:4])}) == 4


class Always:
    """A queue of refusals that never ends."""

    def __init__(self, refusal):
        self.refusal = refusal

    def popleft(self):
        return self.refusal


async def test_the_server_may_ask_for_a_longer_pause_within_bounds(
    api, cluster, discovery, monkeypatch
):
    pauses = []
    sleep = asyncio.sleep

    async def noted(seconds, *rest):
        pauses.append(seconds)
        await sleep(0 if seconds > 1 else seconds, *rest)

    monkeypatch.setattr(asyncio, "sleep", noted)
    api.refusals.append((429, "retry-after: 7\r\n"))
    api.refusals.append((429, "retry-after: 3600\r\n"))
    times = WatchTimes(first_pause_s=0.01, longest_pause_s=30.0)
    async with following(discovery(times)) as follower:
        await follower.sees(cluster.truth())
    assert [pause_s for pause_s in pauses if pause_s > 1] == [7.0, 30.0]


async def test_proxies_of_the_environment_are_for_the_way_out(cluster, discovery, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with following(discovery()) as follower:
        await follower.sees(cluster.truth())


async def test_a_service_that_is_not_there_is_told(api, discovery):
    async with following(discovery()) as follower:
        await follower.sees(frozenset())
        assert follower.problem == (
            "Service engines in namespace (own), port http: no EndpointSlice: there is no such "
            "Service, or it has no selector"
        )


async def test_a_missing_port_is_told_until_it_is_there(api, cluster, discovery):
    cluster.change("a", ports=(("metrics", 9400),), ip="")
    cluster.pods = {}
    cluster._control()
    cluster.api.put("endpointslices", "engines-0", without_port_http())
    async with following(discovery()) as follower:
        await follower.says("EndpointSlice engines-0 has no port http; it has metrics (9400)")
        cluster.add("a", "10.0.0.1")
        await follower.sees(cluster.truth())
        await follower.is_well()


def without_port_http():
    return {
        "metadata": {"name": "engines-0", "labels": {"kubernetes.io/service-name": SERVICE}},
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [{"name": "metrics", "port": 9400}],
    }


async def test_many_events_at_once_are_few_snapshots(api, cluster, discovery):
    async with following(discovery(selector="app=llama", service=None)) as follower:
        await follower.sees(cluster.truth())
        await watched(api)
        for number in range(100):
            cluster.add(f"p{number}", f"10.0.1.{number}")
        await follower.sees(cluster.truth())
        assert len(follower.seen) <= 101


@pytest.fixture
async def in_cluster(tmp_path, monkeypatch):
    """An API server with TLS, and the folder of a pod's service account that fits it."""
    authority = Authority(tmp_path)
    async with ApiServer(token="first", tls=authority.server("127.0.0.1")) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        account = tmp_path / "serviceaccount"
        account.mkdir()
        (account / "token").write_text("first")
        (account / "namespace").write_text(NAMESPACE)
        authority.ca.cert_pem.write_to_path(str(account / "ca.crt"))
        yield server, account


def of_this_pod(account):
    config = KubernetesDiscoveryConfig(kind="kubernetes", service=SERVICE, port="http")
    return KubernetesDiscovery(config, time.monotonic, Random(7), QUICK, account)


async def test_in_a_cluster_the_pods_service_account_is_enough(in_cluster):
    api, account = in_cluster
    cluster = Cluster(api)
    cluster.add("a", "10.0.0.1")
    async with following(of_this_pod(account)) as follower:
        await follower.sees(cluster.truth())
        await watched(api)
        (account / "token").write_text("second")
        api.token = "second"
        api.end_watches()
        await until(lambda: api.requests[-1].token == "second", "the rotated token")
        await watched(api)
        assert follower.problem is None
        assert verbs(api)["list"] == 1


async def test_another_authority_is_a_problem_until_its_file_is_the_right_one(in_cluster, tmp_path):
    api, account = in_cluster
    right = (account / "ca.crt").read_bytes()
    Authority(tmp_path, "other").ca.cert_pem.write_to_path(str(account / "ca.crt"))
    cluster = Cluster(api)
    async with following(of_this_pod(account)) as follower:
        await follower.says("certificate verify failed")
        (account / "ca.crt").write_bytes(right)
        await follower.sees(cluster.truth())
        await follower.is_well()


async def test_outside_of_a_cluster_a_kubeconfig_is_asked_for(tmp_path):
    async with following(of_this_pod(tmp_path / "nothing")) as follower:
        await follower.says("cannot use the service account of this pod")
        assert follower.seen == []


async def test_a_kubeconfig_may_come_later(api, cluster, discovery, tmp_path):
    built = discovery()
    file = tmp_path / "kubeconfig"
    text = file.read_text()
    file.write_text("- broken")
    async with following(built) as follower:
        await follower.says(f"cannot use {file}")
        file.unlink()
        await follower.says("not found")
        file.write_text(text)
        await follower.sees(cluster.truth())
        await follower.is_well()


async def test_credentials_by_a_program(api, cluster, discovery, tmp_path):
    built = discovery()
    api.token = "minted"
    program = tmp_path / "mint"
    program.write_text('#!/bin/sh\necho \'{"status": {"token": "minted"}}\'\n')
    program.chmod(0o755)
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(program)}
    kubeconfig(tmp_path, f"http://127.0.0.1:{api.port}", exec=exec_)
    async with following(built) as follower:
        await follower.sees(cluster.truth())


async def test_a_program_that_is_missing_is_told(api, discovery, tmp_path):
    built = discovery()
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "/no/such/program"}
    kubeconfig(tmp_path, f"http://127.0.0.1:{api.port}", exec=exec_)
    async with following(built) as follower:
        await follower.says("no credentials for")
        await follower.says("/no/such/program")


async def test_a_line_without_end_is_cut_off(api, cluster, discovery, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "_LINE_BYTES", 1000)
    async with following(discovery()) as follower:
        await follower.sees(cluster.truth())
        await watched(api)
        api.watches[0].events.put_nowait({"type": "ADDED", "object": "x" * 300_000})
        await follower.says("a line of over 1000 bytes")
        await follower.is_well()


def test_nothing_heavy_is_imported_before_it_is_used():
    code = (
        "import sys, gateway.replicas.discovery.kinds, gateway.replicas.discovery.kubernetes; "
        "print(sorted({'lightkube', 'httpx2'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
