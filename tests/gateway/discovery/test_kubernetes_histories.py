"""Histories of a cluster, and of all that goes wrong with watching it: all end with the truth."""

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass, field
from random import Random

import pytest

from gateway.config.discovery import KubernetesDiscoveryConfig
from gateway.replicas.discovery.kubernetes import KubernetesDiscovery, WatchTimes
from tests.support.discoveries import following
from tests.support.kubernetes import (
    NAMESPACE,
    SELECTOR,
    SERVICE,
    ApiServer,
    Cluster,
    kubeconfig,
    watched,
)
from tests.support.ports import keep

SOURCES = {"service": {"service": SERVICE}, "pods": {"selector": SELECTOR}}
QUICK = {"first_pause_s": 0.01, "longest_pause_s": 0.05}
# The real waits, of minutes, as seconds: the server counts timeoutSeconds in whole ones.
IMPATIENT = {**QUICK, "watch_s": 1, "grace_s": 0.1, "relist_s": 1.0}


@dataclass
class World:
    """What a step works on."""

    api: ApiServer
    cluster: Cluster
    folder: object
    follower: object = None
    place: socket.socket | None = None


@dataclass(frozen=True)
class History:
    """Steps after a first look at pods a and b; its end is the truth by itself."""

    steps: tuple
    times: dict = field(default_factory=lambda: QUICK)
    user: dict = field(default_factory=dict)


def add(name, ip, **changes):
    return lambda world: world.cluster.add(name, ip, **changes)


def change(name, **changes):
    return lambda world: world.cluster.change(name, **changes)


def remove(name):
    return lambda world: world.cluster.remove(name)


def unseen(step):
    """Let a step happen without an event, now or later."""

    def run(world):
        with world.api.losing_events():
            step(world)

    return run


def told(text):
    return lambda world: world.follower.says(text)


async def settle(world):
    await world.follower.sees(world.cluster.truth())


async def watching(world):
    await watched(world.api)


async def well(world):
    await world.follower.is_well()


def quiet_end(world):
    world.api.end_watches()


def broken_watch(world):
    world.api.break_watches()


def half_open(world):
    world.api.freeze_watches()


def bookmark(world):
    world.api.bookmark()


def pass_by(world):
    world.api.pass_by(50)


def compact(world):
    world.api.compact()


def hold(world):
    world.api.gate.clear()


def release(world):
    world.api.gate.set()


def gone_by_status(world):
    world.api.gone_by_status = True


def refuse(*refusals):
    return lambda world: world.api.refusals.extend(refusals)


def forbid(*verbs):
    plurals = ("pods", "endpointslices")
    return lambda world: world.api.forbidden.update((v, p) for v in verbs for p in plurals)


def allow(world):
    world.api.forbidden.clear()


def expire_token(world):
    world.api.token = "second"


def rotate_token(world):
    (world.folder / "token").write_text("second\n")


async def down(world):
    await world.api.stop()
    world.place = keep(socket.AF_INET, ("127.0.0.1", world.api.port))


async def up(world):
    world.place.close()
    await world.api.start()


HISTORIES = {
    "a rolling update": History(
        (
            *(add("c", "10.0.0.3", ready=False), settle, change("c", ready=True), settle),
            *(change("a", terminating=True), settle, remove("a"), settle),
            *(add("d", "10.0.0.4", ready=False), settle, change("d", ready=True), settle),
            *(change("b", terminating=True), settle, remove("b")),
        )
    ),
    "a slow pod: no address, then not ready, then ready": History(
        (
            *(add("c", "", ready=False), add("d", "10.0.0.4"), settle),
            *(change("c", ip="10.0.0.3"), settle, change("c", ready=True)),
        )
    ),
    "a pod that fails its probe and recovers": History(
        (change("a", ready=False), settle, change("a", ready=True), settle)
    ),
    "a relabelled pod leaves and comes back": History(
        (
            change("a", labels={"app": "quarantine"}),
            settle,
            change("a", labels={"app": "llama"}),
            settle,
            change("b", labels={}),
        )
    ),
    "a pod of the same name with another address": History(
        (
            *(change("a", terminating=True), settle, remove("a")),
            *(add("a", "10.0.0.9", life=2, ready=False), settle, change("a", ready=True)),
        )
    ),
    "an ended pod's address goes to another pod": History(
        (change("a", ended=True), settle, add("c", "10.0.0.1"))
    ),
    "from none to twelve and back": History(
        (
            *(remove("a"), remove("b"), settle),
            *(add(f"p{n}", f"10.0.1.{n}") for n in range(12)),
            settle,
            *(remove(f"p{n}") for n in range(12)),
        )
    ),
    "IPv6": History((add("c", "fd00::3"), settle, change("c", ready=False))),
    "a broken watch and a lost deletion": History((broken_watch, unseen(remove("a")))),
    "a lost event on a healthy watch": History(
        (watching, unseen(remove("a")), unseen(add("c", "10.0.0.3"))), IMPATIENT
    ),
    "watches end in order, with changes between them": History(
        (
            *(watching, hold, quiet_end, remove("a"), release, settle),
            *(watching, hold, quiet_end, add("c", "10.0.0.3"), release),
        )
    ),
    "an old version, told by an event": History(
        (watching, hold, quiet_end, remove("a"), pass_by, compact, release)
    ),
    "an old version, told by the status": History(
        (gone_by_status, watching, hold, quiet_end, remove("a"), pass_by, compact, release)
    ),
    "a bookmark, then a compacted history": History(
        (
            *(watching, pass_by, bookmark, compact, hold, quiet_end, release),
            *(watching, remove("a")),
        )
    ),
    "a half-open connection": History((watching, half_open, remove("a")), IMPATIENT),
    "errors of a server in trouble": History(
        (
            refuse((500, ""), (429, "retry-after: 0\r\n"), (503, ""), (504, "")),
            *(broken_watch, unseen(remove("a"))),
        )
    ),
    "the server is away for a while": History(
        (down, told("lost or never reached"), remove("a"), compact, up, settle, well)
    ),
    "rights that are taken and given back": History(
        (
            *(forbid("list", "watch"), broken_watch, told("403"), remove("a")),
            *(allow, settle, well),
        )
    ),
    "lists are allowed, watches are not": History(
        (
            *(forbid("watch"), broken_watch, told("verbs: [list, watch]"), remove("a"), settle),
            *(add("c", "10.0.0.3"), settle, told("watch of"), allow, well),
        )
    ),
    "an expired token, and the file has the next one": History(
        (rotate_token, expire_token, broken_watch, unseen(remove("a")), settle, watching, well),
        user={"tokenFile": "token"},
    ),
    "an expired token, and the next one comes late": History(
        (
            *(expire_token, broken_watch, remove("a"), told("401: Unauthorized")),
            *(rotate_token, settle, well),
        ),
        user={"tokenFile": "token"},
    ),
}


@contextlib.asynccontextmanager
async def a_world(folder, source, history):
    user = {key: str(folder / value) for key, value in history.user.items()}
    (folder / "token").write_text("first\n")
    async with ApiServer(token="first" if user else None) as api:
        world = World(api, Cluster(api), folder)
        world.cluster.add("a", "10.0.0.1")
        world.cluster.add("b", "10.0.0.2")
        config = KubernetesDiscoveryConfig(
            kind="kubernetes",
            namespace=NAMESPACE,
            port="http",
            kubeconfig=kubeconfig(folder, f"http://127.0.0.1:{api.port}", **user),
            **SOURCES[source],
        )
        times = WatchTimes(**history.times)
        discovery = KubernetesDiscovery(config, time.monotonic, Random(7), times)
        async with following(discovery) as world.follower:
            yield world


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", HISTORIES)
async def test_a_history_ends_with_the_truth(tmp_path, source, name):
    async with a_world(tmp_path, source, HISTORIES[name]) as world:
        for step in (settle, watching, *HISTORIES[name].steps, settle):
            done = step(world)
            if asyncio.iscoroutine(done):
                await done
