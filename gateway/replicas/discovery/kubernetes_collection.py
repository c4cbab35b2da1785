"""From a list and the watch events after it to snapshots. Pure.

What the Kubernetes API leaves to its users is decided here:

- A pod or endpoint that terminates stays in the snapshot with `ready=False` until it is deleted:
  it gets no request from the first event on, while its open streams, and with them its load, stay
  known. It leaves the snapshot when the API no longer has it.
- Slices of one Service overlap while the controller moves endpoints between them. An endpoint is
  one replica then, ready if all copies say so.
- A dual-stack Service has each pod in slices of both families. The pod is one replica, by IPv4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from pydantic_core import PydanticCustomError

from gateway.config.fields import normal_url
from gateway.replicas.discovery.base import Found, Snapshot
from gateway.replicas.discovery.kubernetes_objects import (
    Address,
    ApiFault,
    Metadata,
    PortChoice,
    Reading,
    decode,
    read_pod,
    read_slice,
)

# Longer messages of the API server repeat themselves; this is enough for a line of a log.
_MESSAGE_CHARACTERS = 300


class _Object(msgspec.Struct):
    metadata: Metadata


class _List(msgspec.Struct):
    metadata: Metadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object that replicas are read from.

    Attributes:
        group: API group; empty for the core.
        plural: Its name in paths and in RBAC rules.
        read: Reads one object.
        none: What it means that there is no object at all; None if it may be so.
    """

    group: str
    plural: str
    read: Callable[[bytes | msgspec.Raw, Sequence[PortChoice]], Reading]
    none: str | None = None

    def path(self, namespace: str) -> str:
        """Return the path of the collection in one namespace."""
        base = f"/apis/{self.group}" if self.group else "/api"
        return f"{base}/v1/namespaces/{namespace}/{self.plural}"

    def rule(self) -> str:
        """Return the least RBAC rule that a list and a watch need."""
        return (
            f'{{apiGroups: ["{self.group}"], resources: ["{self.plural}"], verbs: [list, watch]}}'
        )


ENDPOINT_SLICES = Resource(
    "discovery.k8s.io",
    "endpointslices",
    read_slice,
    # A Service with a selector has a slice, if an empty one, also when no pod is there.
    none="no EndpointSlice: there is no such Service, or it has no selector",
)
PODS = Resource("", "pods", read_pod)


class Collection:
    """What a list and the watch events after it add up to.

    Args:
        resource: Kind of the objects.
        ports: Ports that are replicas; with several, a replica's name is `POD:PORT`.
        scheme: http or https.
    """

    def __init__(self, resource: Resource, ports: Sequence[PortChoice], scheme: str) -> None:
        self.version = ""
        """The resourceVersion up to which this is known; the next watch begins there."""
        self._resource = resource
        self._ports = tuple(ports)
        self._scheme = scheme
        self._reading_by_name: dict[str, Reading] = {}

    def replace(self, data: bytes) -> None:
        """Take the answer to a list.

        Raises:
            ApiFault: It is none; nothing has changed then.
        """
        answer = decode(data, _List)
        self._reading_by_name = {
            decode(item, _Object).metadata.name: self._resource.read(item, self._ports)
            for item in answer.items or ()
        }
        self.version = answer.metadata.resource_version

    def apply(self, line: bytes) -> None:
        """Take one event of a watch.

        Raises:
            ApiFault: The server says that the watch failed, or what it says makes no sense.
        """
        event = decode(line, _Event)
        if event.type == "ERROR":
            status = decode(event.object, _Status)
            raise ApiFault(f"the watch failed: {_short(status.message)}", status.code)
        metadata = decode(event.object, _Object).metadata
        if event.type in {"ADDED", "MODIFIED"}:
            reading = self._resource.read(event.object, self._ports)
            self._reading_by_name[metadata.name] = reading
        elif event.type == "DELETED":
            self._reading_by_name.pop(metadata.name, None)
        elif event.type != "BOOKMARK":
            raise ApiFault(f"the watch sent an event of the unknown type {event.type[:20]!r}")
        self.version = metadata.resource_version

    @property
    def problem(self) -> str | None:
        """Why replicas may be missing though the API answers; None if nothing looks wrong."""
        if not self._reading_by_name:
            return self._resource.none
        found = [r.lacks for r in self._reading_by_name.values() if r.lacks is not None]
        return min(found, default=None)

    def snapshot(self) -> Snapshot:
        """Return the replicas, each once and no two at one address."""
        addresses = (a for r in self._reading_by_name.values() for a in r.addresses)
        by_url: dict[str, Found] = {}
        for address in _one_a_pod(addresses):
            found = self._found(address)
            # An address has moved on where two pods have it: the one that ends is not ready.
            if found is not None and not (found.url in by_url and by_url[found.url].ready):
                by_url[found.url] = found
        return frozenset(by_url.values())

    def _found(self, address: Address) -> Found | None:
        host = f"[{address.host}]" if ":" in address.host else address.host
        several = len(self._ports) > 1 and address.pod
        name = f"{address.pod}:{address.choice}" if several else address.pod
        try:
            url = normal_url(f"{self._scheme}://{host}:{address.port}")
        except PydanticCustomError:
            return None  # a slice that somebody wrote by hand can hold what no URL can
        return Found(url, name, address.ready)


def refusal(verb: str, resource: Resource, namespace: str, status: int, body: bytes) -> str:
    """Return what an answer other than 200 to a list or a watch means, with the cure if known."""
    what = f"{verb} of {resource.plural} in namespace {namespace}"
    try:
        message = _short(msgspec.json.decode(body, type=_Status).message)
    except msgspec.MsgspecError:
        message = "no reason given"
    if status == 401:
        return (
            f"the Kubernetes API does not know us (401: {message}): the token or certificate is "
            "missing, has expired, or belongs to another cluster"
        )
    if status == 403:
        return (
            f"the Kubernetes API forbids {what} (403: {message}): bind the gateway's service "
            f"account to a Role in {namespace} with the rule {resource.rule()}"
        )
    return f"the Kubernetes API answered {what} with {status}: {message}"


def _one_a_pod(addresses: Iterable[Address]) -> list[Address]:
    chosen: dict[tuple[str, PortChoice], Address] = {}
    for new in addresses:
        owner = (new.uid or new.pod or new.host, new.choice)
        old = chosen.get(owner)
        if old is None or _order(new) < _order(old) or (_order(new) == _order(old) and old.ready):
            chosen[owner] = new
    return sorted(chosen.values(), key=_order)


def _order(address: Address) -> tuple[bool, str, int]:
    return (":" in address.host, address.host, address.port)


def _short(message: str | None) -> str:
    return " ".join((message or "no reason given").split())[:_MESSAGE_CHARACTERS]
