"""A Kubernetes API server for tests: lists, and watches that stream, with what goes wrong in both.

`ApiServer` speaks HTTP and keeps objects, versions and a window of history; it knows nothing of
pods. `Cluster` is the world behind it: pods that a test moves, from which it writes Pods and the
EndpointSlices of one Service, and from which `truth` is computed without any of that JSON.
"""

import asyncio
import contextlib
import json
from collections import deque
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, unquote, urlsplit

from gateway.replicas.discovery.base import Found
from tests.support.peers import Peer, PeerServer
from tests.support.replicas import until

NAMESPACE = "serving"
SERVICE = "engines"
LABELS = {"app": "llama"}
SELECTOR = "app=llama"
# The controller's own limit is 100; this small, every history has several slices.
ENDPOINTS_A_SLICE = 2
KIND_BY_PLURAL = {"pods": "Pod", "endpointslices": "EndpointSlice"}
GROUP_BY_PLURAL = {"pods": "v1", "endpointslices": "discovery.k8s.io/v1"}


@dataclass(frozen=True)
class Change:
    """One step of the history: an object before and after it; None where there is none."""

    version: int
    plural: str
    old: dict | None
    new: dict | None

    def as_seen(self, selector) -> tuple[str, dict] | None:
        """Return the event for a watch with this selector, as the API server decides it."""
        before = self.old is not None and matches(self.old, selector)
        after = self.new is not None and matches(self.new, selector)
        if after:
            return ("MODIFIED" if before else "ADDED"), self.new
        if before:
            return "DELETED", versioned(self.new or self.old, self.version)
        return None


@dataclass(frozen=True)
class Request:
    """What a client asked: `verb` is list or watch."""

    verb: str
    plural: str
    params: dict
    token: str


@dataclass
class Watch:
    """One open watch."""

    request: Request
    peer: Peer
    events: asyncio.Queue = field(default_factory=asyncio.Queue)
    frozen: bool = False


@dataclass
class ApiServer:
    """A list/watch server on a port of this machine; what it does wrong is set by its attributes.

    Attributes:
        objects: By plural, then name.
        refusals: Answers (status, headers) to the next requests, before anything else.
        forbidden: (verb, plural) pairs that are answered with 403.
        token: The bearer token that is known; None lets everybody in.
        gone_by_status: Tell an old version by status 410, not by an ERROR event.
        sends_bookmarks: Whether it knows bookmarks at all: it may be without.
        gate: Requests wait for it.
    """

    objects: dict = field(default_factory=lambda: {plural: {} for plural in KIND_BY_PLURAL})
    version: int = 100
    oldest: int = 100
    history: list = field(default_factory=list)
    watches: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    refusals: deque = field(default_factory=deque)
    forbidden: set = field(default_factory=set)
    token: str | None = None
    gone_by_status: bool = False
    sends_bookmarks: bool = True
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    tls: object = None

    def __post_init__(self):
        self.gate.set()
        self._peers = None
        self._server = None

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *_):
        await self.stop()

    async def start(self):
        self._peers = PeerServer(self._converse)
        self._server = await asyncio.start_server(
            self._peers._serve, "127.0.0.1", self.port, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self):
        """Close the port and reset every connection."""
        self._server.close()
        for task in list(self._peers.tasks):
            task.cancel()
        await asyncio.gather(*self._peers.tasks, return_exceptions=True)
        await self._server.wait_closed()
        self.watches.clear()

    @property
    def num_open(self):
        return self._peers.connections - self._peers.ended

    # What happens to objects.

    def put(self, plural, name, body):
        old = self.objects[plural].get(name)
        self.version += 1
        new = versioned(body, self.version)
        self.objects[plural][name] = new
        self._happened(Change(self.version, plural, old, new))

    def delete(self, plural, name):
        self.version += 1
        old = self.objects[plural].pop(name)
        self._happened(Change(self.version, plural, old, None))

    def pass_by(self, num_changes):
        """Let other objects of the cluster change, which moves the version on."""
        self.version += num_changes

    def compact(self):
        """Forget the history, as etcd does after five minutes."""
        self.oldest = self.version
        self.history.clear()

    @contextlib.contextmanager
    def losing_events(self):
        """Lose what happens in this block: no watch ever tells it, not even from history."""
        kept, self._happened = self._happened, lambda change: None
        try:
            yield
        finally:
            self._happened = kept

    def _happened(self, change):
        self.history.append(change)
        for watch in self.watches:
            self._tell(watch, change)

    def _tell(self, watch, change):
        seen = change.as_seen(watch.request.params.get("labelSelector", ""))
        if change.plural == watch.request.plural and seen is not None:
            watch.events.put_nowait(event(*seen))

    # What happens to watches.

    def bookmark(self):
        for watch in self.watches:
            if self.sends_bookmarks and watch.request.params.get("allowWatchBookmarks") == "true":
                watch.events.put_nowait(bookmark(watch.request.plural, self.version))

    def end_watches(self):
        """End all watches in order, as after their timeoutSeconds."""
        for watch in self.watches:
            watch.events.put_nowait(None)

    def break_watches(self):
        """Reset all watches in the middle of an event."""
        for watch in self.watches:
            watch.peer.writer.write(b'1000\r\n{"type":"MODIFIED","object":{"kind"')
            watch.peer.reset()
        self.watches.clear()

    def freeze_watches(self):
        """Let all watches say nothing any more, not even that they end: half-open connections."""
        for watch in self.watches:
            watch.frozen = True
        self.watches.clear()

    # HTTP.

    async def _converse(self, peer):
        while True:
            received = await peer.request()
            target = urlsplit(received.line.split()[1].decode())
            params = {key: values[0] for key, values in parse_qs(target.query).items()}
            *group, _, namespace, plural = unquote(target.path).strip("/").split("/")
            assert "/".join(group[1:]) == GROUP_BY_PLURAL[plural], target.path
            assert namespace == NAMESPACE, target.path
            verb = "watch" if params.get("watch") == "true" else "list"
            token = (received.header(b"authorization") or b"").decode().removeprefix("Bearer ")
            request = Request(verb, plural, params, token)
            self.requests.append(request)
            await self.gate.wait()
            if not await self._refused(peer, request):
                await (self._watch if verb == "watch" else self._list)(peer, request)

    async def _refused(self, peer, request):
        status, headers = 0, ""
        if self.refusals:
            status, headers = self.refusals.popleft()
        elif self.token is not None and request.token != self.token:
            status = 401
        elif (request.verb, request.plural) in self.forbidden:
            status = 403
        elif self.gone_by_status and self._is_gone(request):
            status = 410
        if status:
            message = {401: "Unauthorized", 403: f"cannot {request.verb} resource"}
            await answer(peer, failure(status, message.get(status, "as told")), status, headers)
        return bool(status)

    def _is_gone(self, request):
        return request.verb == "watch" and int(request.params["resourceVersion"]) < self.oldest

    async def _list(self, peer, request):
        items = [
            {key: value for key, value in one.items() if key not in {"kind", "apiVersion"}}
            for one in self.objects[request.plural].values()
            if matches(one, request.params.get("labelSelector", ""))
        ]
        kind = f"{KIND_BY_PLURAL[request.plural]}List"
        metadata = {"resourceVersion": str(self.version)}
        await answer(peer, {"kind": kind, "metadata": metadata, "items": items})

    async def _watch(self, peer, request):
        watch = Watch(request, peer)
        if self._is_gone(request):
            text = f"too old resource version: {request.params['resourceVersion']}"
            watch.events.put_nowait({"type": "ERROR", "object": failure(410, text)})
            watch.events.put_nowait(None)
        else:
            for change in self.history:
                if change.version > int(request.params["resourceVersion"]):
                    self._tell(watch, change)
            self.watches.append(watch)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        await peer.send(head + b"transfer-encoding: chunked\r\n\r\n")
        seconds = float(request.params.get("timeoutSeconds", "1800"))
        asyncio.get_running_loop().call_later(seconds, watch.events.put_nowait, None)
        await self._stream(watch)

    async def _stream(self, watch):
        leaving = asyncio.create_task(self._notice_leaving(watch))
        try:
            while (one := await watch.events.get()) is not None and not watch.frozen:
                data = json.dumps(one, ensure_ascii=False).encode() + b"\n"
                await watch.peer.send(chunk(data))
            if watch.frozen:
                await leaving
            leaving.cancel()
            await watch.peer.send(chunk(b""))
        finally:
            leaving.cancel()
            if watch in self.watches:
                self.watches.remove(watch)

    async def _notice_leaving(self, watch):
        await watch.peer.left()
        watch.events.put_nowait(None)


@dataclass(frozen=True)
class Pod:
    """One pod as a test thinks of it.

    Attributes:
        life: Tells it from earlier pods of this name.
    """

    name: str
    ip: str = ""
    ready: bool = True
    terminating: bool = False
    ended: bool = False
    labels: dict = field(default_factory=lambda: dict(LABELS))
    ports: tuple = (("http", 8000), ("metrics", 9400))
    life: int = 1

    @property
    def url(self):
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"http://{host}:{dict(self.ports)['http']}"

    @property
    def is_reachable(self):
        return bool(self.ip) and self.labels == LABELS and not self.ended


class Cluster:
    """Pods, and the controller that writes the EndpointSlices of the Service in front of them."""

    def __init__(self, api):
        self.api = api
        self.pods = {}
        self._slices = {}
        self._num_slices = 0
        self._control()

    def truth(self):
        """Return what a discovery that knows everything would say about port http."""
        return frozenset(
            Found(pod.url, pod.name, pod.ready and not pod.terminating)
            for pod in self.pods.values()
            if pod.is_reachable
        )

    def put(self, pods):
        """Let there be these pods and no others, in one step of the controller."""
        new = {pod.name: pod for pod in pods}
        for name in self.pods.keys() - new.keys():
            self.api.delete("pods", name)
        for pod in new.values():
            if pod != self.pods.get(pod.name):
                self.api.put("pods", pod.name, pod_object(pod))
        self.pods = new
        self._control()

    def add(self, name, ip, **changes):
        self._put(Pod(name, ip, **changes))

    def change(self, name, **changes):
        self._put(replace(self.pods[name], **changes))

    def remove(self, name):
        self.put(pod for pod in self.pods.values() if pod.name != name)

    def _put(self, pod):
        self.put({**self.pods, pod.name: pod}.values())

    def _control(self):
        """Write the slices. As with the real controller, what is in a slice stays there."""
        reachable = {pod.name: pod for pod in self.pods.values() if pod.is_reachable}
        for piece in self._slices.values():
            piece.pods = [
                reachable.pop(name)
                for name in [pod.name for pod in piece.pods]
                if name in reachable and piece.fits(reachable[name])
            ]
        for pod in reachable.values():
            self._place(pod)
        written = {name: one for name, one in self._slices.items() if one.pods}
        if not written:
            written = {f"{SERVICE}-0": Slice((), is_v6=False)}
        stored = self.api.objects["endpointslices"]
        for name, piece in written.items():
            body = slice_object(name, piece)
            if name not in stored or versioned(body, 0) != versioned(stored[name], 0):
                self.api.put("endpointslices", name, body)
        for name in stored.keys() - written.keys():
            self.api.delete("endpointslices", name)
        self._slices = written

    def _place(self, pod):
        for piece in self._slices.values():
            if piece.fits(pod) and 0 < len(piece.pods) < ENDPOINTS_A_SLICE:
                piece.pods.append(pod)
                return
        self._num_slices += 1
        new = Slice(pod.ports, ":" in pod.ip, [pod])
        self._slices[f"{SERVICE}-{self._num_slices}"] = new


@dataclass
class Slice:
    """One EndpointSlice: pods of one family with the same ports."""

    ports: tuple
    is_v6: bool
    pods: list = field(default_factory=list)

    def fits(self, pod):
        return (self.ports, self.is_v6) == (pod.ports, ":" in pod.ip)


def pod_object(pod):
    metadata = {
        "name": pod.name,
        "namespace": NAMESPACE,
        "uid": f"{pod.name}-{pod.life}",
        "labels": pod.labels,
        "annotations": {"note": "one\u0085line"},  # legal in JSON, and an end of line to some
    }
    if pod.terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ports = [{"name": name, "containerPort": number} for name, number in pod.ports]
    status = {"phase": "Succeeded" if pod.ended else "Running" if pod.ip else "Pending"}
    status["conditions"] = [{"type": "Ready", "status": str(pod.ready and bool(pod.ip))}]
    if pod.ip:
        status |= {"podIP": pod.ip, "podIPs": [{"ip": pod.ip}]}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {"containers": [{"name": "reverse-proxy"}, {"name": "llama", "ports": ports}]},
        "status": status,
    }


def slice_object(name, piece):
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "labels": {"kubernetes.io/service-name": SERVICE},
        },
        "addressType": "IPv6" if piece.is_v6 else "IPv4",
        "endpoints": [endpoint(pod) for pod in piece.pods] or None,
        "ports": [{"name": n, "port": p, "protocol": "TCP"} for n, p in piece.ports] or None,
    }


def endpoint(pod):
    return {
        "addresses": [pod.ip],
        "conditions": {
            "ready": pod.ready and not pod.terminating,
            "serving": pod.ready,
            "terminating": pod.terminating,
        },
        "targetRef": {"kind": "Pod", "name": pod.name, "uid": f"{pod.name}-{pod.life}"},
    }


def matches(one, selector):
    """Whether an object has the labels of a selector; of its grammar only `=` and `,`."""
    wanted = dict(term.split("=") for term in selector.split(",") if term)
    return wanted.items() <= one["metadata"].get("labels", {}).items()


def versioned(body, version):
    return {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}


def event(kind, one):
    return {"type": kind, "object": one}


def bookmark(plural, version):
    """Return a bookmark as Go writes it: the object with nothing but its version, nulls and all."""
    one = {"kind": KIND_BY_PLURAL[plural], "apiVersion": GROUP_BY_PLURAL[plural]}
    one["metadata"] = {"resourceVersion": str(version), "creationTimestamp": None}
    empty = {
        "pods": {"spec": {"containers": None}, "status": {}},
        "endpointslices": {"addressType": "", "endpoints": None, "ports": None},
    }
    return event("BOOKMARK", {**one, **empty[plural]})


def failure(status, message):
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "code": status,
        "message": message,
    }


async def answer(peer, body, status=200, headers=""):
    data = json.dumps(body, ensure_ascii=False).encode()
    head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\n{headers}"
    await peer.send(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def kubeconfig(folder, url, **user):
    """Write a kubeconfig for a server, and return its path."""
    file = folder / "kubeconfig"
    context = {"cluster": "test", "user": "me", "namespace": NAMESPACE}
    file.write_text(
        json.dumps(
            {
                "clusters": [{"name": "test", "cluster": {"server": url}}],
                "users": [{"name": "me", "user": user}],
                "contexts": [{"name": "test", "context": context}],
                "current-context": "test",
            }
        )
    )
    return str(file)


async def watched(api, num=1):
    """Wait until that many watches are open."""
    await until(lambda: len(api.watches) == num, f"{num} open watches")
