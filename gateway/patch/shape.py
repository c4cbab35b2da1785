"""What must hold of an object's form so that it can be read. Pure.

Only what is read here is described; whatever else an object says is left alone. A file that a
cluster would refuse is refused with the place, and not with a traceback.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.patch.settings import CannotPatch

_Scalar = str | int | float | bool


class _Form(msgspec.Struct, rename="camel"):
    """Fields as YAML has them; an empty one counts as left out."""


class _Metadata(_Form):
    name: str
    namespace: str | None = None


class _FieldRef(_Form):
    field_path: str | None = None


class _Source(_Form):
    field_ref: _FieldRef | None = None


class _Variable(_Form):
    name: str
    value: _Scalar | None = None
    value_from: _Source | None = None


class _Mount(_Form):
    name: str
    mount_path: str


class _Claim(_Form):
    claim_name: str


class _Volume(_Form):
    name: str
    persistent_volume_claim: _Claim | None = None


class _Program(_Form):
    image: str | None = None
    command: list[_Scalar] | None = None
    args: list[_Scalar] | None = None


class _Container(_Program, kw_only=True):
    name: str
    env: list[_Variable] | None = None
    volume_mounts: list[_Mount] | None = None


class _Pod(_Form):
    containers: list[_Container]
    volumes: list[_Volume] | None = None


class _Labels(_Form):
    labels: dict[str, str] | None = None


class _Template(_Form):
    metadata: _Labels
    spec: _Pod


class _Selector(_Form):
    match_labels: dict[str, str] | None = None


class _WorkloadSpec(_Form):
    template: _Template
    selector: _Selector | None = None


class Workload(_Form):
    """A Deployment or a StatefulSet."""

    metadata: _Metadata
    spec: _WorkloadSpec


class _Server(_Form):
    mode: str | None = None


class _Worker(_Program):
    environment_variables: list[_Variable] | None = None
    lmcache: _Server | None = None


class _Cache(_Form):
    lmcache: _Server | None = None


class _Routing(_Form):
    enabled: bool | None = None


class _EndpointSpec(_Form):
    worker: _Worker
    kv_cache_spec: _Cache | None = None
    intelligent_routing_spec: _Routing | None = None
    lmcache: _Server | None = None


class Endpoint(_Form):
    """An InferenceEndpointConfig."""

    metadata: _Metadata
    spec: _EndpointSpec


def check(thing: Any, form: type[Workload | Endpoint]) -> None:
    """Check an object's form.

    Raises:
        CannotPatch: It has another one; the text says where.
    """
    try:
        msgspec.convert(thing, form)
    except msgspec.ValidationError as error:
        raise CannotPatch(f"not of the form that Kubernetes takes: {error}") from error
