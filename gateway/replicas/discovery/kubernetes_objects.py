"""What one EndpointSlice or Pod says: JSON of the Kubernetes API to addresses. Pure.

Only the fields that are read here are decoded; everything else of an object is passed over.

An endpoint's `ready` is believed as it stands: a Service with publishNotReadyAddresses asks for
pods that are not ready on purpose, and replicas are probed before they get a request anyway. What
terminates is never ready, whatever else it says.

Source: https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

Struct = TypeVar("Struct", bound=msgspec.Struct)

PortChoice = int | str
"""A port by its number or by its name."""


class ApiFault(Exception):
    """The API did not do what it was asked; the text says why, in one line for people.

    Attributes:
        status: The HTTP status code, or that of an ERROR event; None if there was no answer.
        retry_after_s: Seconds that the server asks to wait; 0 if it does not ask.
    """

    def __init__(self, text: str, status: int | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s


class Metadata(msgspec.Struct, rename="camel"):
    """What every object and every list has."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    terminating: bool | None = None


class _Reference(msgspec.Struct):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] | None = None
    conditions: _Conditions | None = None
    hostname: str | None = None
    target_ref: _Reference | None = None


class _SlicePort(msgspec.Struct):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class _Slice(msgspec.Struct, rename="camel"):
    metadata: Metadata
    endpoints: list[_Endpoint] | None = None
    ports: list[_SlicePort] | None = None


class _ContainerPort(msgspec.Struct, rename="camel"):
    container_port: int
    name: str | None = None
    protocol: str | None = None


class _Container(msgspec.Struct, rename="camel"):
    ports: list[_ContainerPort] | None = None
    restart_policy: str | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _PodCondition(msgspec.Struct):
    type: str
    status: str


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str | None = None
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    conditions: list[_PodCondition] | None = None


class _Pod(msgspec.Struct):
    metadata: Metadata
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


@dataclass(frozen=True, slots=True)
class Address:
    """One port of one pod, as one object of the API has it.

    Attributes:
        pod: The pod's name, or the endpoint's host name; empty if it has neither.
        uid: Tells the pod from an earlier one of this name; empty if there is no pod.
        host: Its IP address.
        port: TCP port number.
        choice: The port as the configuration calls it.
        ready: Whether it may get requests.
    """

    pod: str
    uid: str
    host: str
    port: int
    choice: PortChoice
    ready: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """What one object says: its addresses, and in `lacks` what was looked for in vain."""

    addresses: tuple[Address, ...] = ()
    lacks: str | None = None


def read_slice(data: bytes | msgspec.Raw, ports: Sequence[PortChoice]) -> Reading:
    """Return the addresses in an EndpointSlice. A port's number is the pods', not the Service's.

    Raises:
        ApiFault: `data` is no EndpointSlice.
    """
    piece = decode(data, _Slice)
    if not piece.endpoints:
        return Reading()  # nothing to be reached, and then also no ports
    known = [
        (port.name or "", port.port)
        for port in piece.ports or ()
        if port.port is not None and port.protocol in {None, "TCP"}
    ]
    chosen = [
        (choice, number)
        for choice in ports
        for name, number in known
        if choice == (number if isinstance(choice, int) else name)
    ]
    addresses = tuple(
        Address(*_owner(endpoint), host, number, choice, _is_ready(endpoint.conditions))
        for endpoint in piece.endpoints or ()
        # The addresses of one endpoint are fungible, says the API: the first one is enough.
        for host in (endpoint.addresses or ())[:1]
        for choice, number in chosen
    )
    lacking = set(ports) - {choice for choice, _ in chosen}
    return Reading(addresses, _lacks(f"EndpointSlice {piece.metadata.name}", lacking, known))


def read_pod(data: bytes | msgspec.Raw, ports: Sequence[PortChoice]) -> Reading:
    """Return the addresses of a Pod: none before it has an IP, and none when it has ended.

    A port by its number need not be declared in the pod.

    Raises:
        ApiFault: `data` is no Pod.
    """
    pod = decode(data, _Pod)
    host = pod.status.pod_ip
    # A pod that has ended keeps its IP in the status while the network gives it to another pod.
    if not host or pod.status.phase in {"Succeeded", "Failed"}:
        return Reading()
    known = list(_named_ports(pod.spec))
    by_name = dict(reversed(known))  # of equal names the first counts, as for a Service
    chosen = {
        choice: choice if isinstance(choice, int) else by_name.get(choice) for choice in ports
    }
    conditions = {c.type: c.status for c in pod.status.conditions or ()}
    ready = conditions.get("Ready") == "True" and pod.metadata.deletion_timestamp is None
    addresses = tuple(
        Address(pod.metadata.name, pod.metadata.uid, host, number, choice, ready)
        for choice, number in chosen.items()
        if number is not None
    )
    lacking = {choice for choice, number in chosen.items() if number is None}
    return Reading(addresses, _lacks(f"pod {pod.metadata.name}", lacking, known))


def _owner(endpoint: _Endpoint) -> tuple[str, str]:
    target = endpoint.target_ref
    if target is not None and target.kind == "Pod":
        return target.name, target.uid
    return endpoint.hostname or "", ""


def _is_ready(conditions: _Conditions | None) -> bool:
    # What is not said counts as ready and as not terminating, says the API.
    if conditions is None:
        return True
    return conditions.ready is not False and not conditions.terminating


def _named_ports(spec: _PodSpec) -> Iterator[tuple[str, int]]:
    # Init containers that restart are sidecars; those that end serve nothing.
    sidecars = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    for container in [*(spec.containers or ()), *sidecars]:
        for port in container.ports or ():
            if port.protocol in {None, "TCP"}:
                yield port.name or "", port.container_port


def _lacks(what: str, lacking: set[PortChoice], known: Sequence[tuple[str, int]]) -> str | None:
    if not lacking:
        return None
    wanted = " or ".join(sorted(map(str, lacking)))
    has = ", ".join(f"{name} ({number})" if name else str(number) for name, number in known)
    return f"{what} has no port {wanted}; it has {has or 'none'}"


def decode(data: bytes | msgspec.Raw, kind: type[Struct]) -> Struct:
    """Decode one JSON value.

    Raises:
        ApiFault: It is not of that kind.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ApiFault(f"the Kubernetes API sent what we cannot read: {error}") from error
