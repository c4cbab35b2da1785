"""What runs, asked from a cluster's API server: pods, workloads, and replicas' metrics.

To be imported only where a cluster is asked: lightkube and its HTTP client take 0.15 s.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Any

from gateway.patch.live import Live, Unreachable, from_objects
from gateway.patch.objects import Target
from gateway.replicas.discovery.kubernetes import SERVICE_ACCOUNT
from gateway.replicas.discovery.kubernetes_api import KubernetesApi, open_api
from gateway.replicas.discovery.kubernetes_collection import PODS, Resource
from gateway.replicas.discovery.kubernetes_objects import ApiFault


def from_cluster(target: Target, kubeconfig: str | None, port: int) -> Live:
    """Return what runs of a target.

    Args:
        target: What to ask for.
        kubeconfig: File, with its current context; None for the service account of this pod.
        port: Of the engine's HTTP server, which is asked by way of the API server.

    Raises:
        Unreachable: The API server does not answer, or refuses to list pods.
    """
    try:
        return asyncio.run(_ask(target, kubeconfig, port))
    except ApiFault as fault:
        raise Unreachable(str(fault)) from fault


async def _ask(target: Target, kubeconfig: str | None, port: int) -> Live:
    async with aclosing(open_api(kubeconfig, SERVICE_ACCOUNT)) as api:
        namespace = target.namespace or api.namespace
        labels = {"labelSelector": target.selector}
        things = await _listed(api, PODS, "Pod", namespace, labels)
        kind = "StatefulSet" if target.kind == "StatefulSet" else "Deployment"
        workloads = _resource("apps", f"{kind.lower()}s")
        # By name, as it need not have the labels of its pods. Pods are what counts: without the
        # right to read workloads it is left out.
        with suppress(ApiFault):
            name = {"fieldSelector": f"metadata.name={target.name}"}
            things += await _listed(api, workloads, kind, namespace, name)
        live = from_objects(target, things)
        for pod in live.pods:
            await _read_metrics(api, namespace, pod["metadata"]["name"], port, live)
        return live


async def _listed(
    api: KubernetesApi, resource: Resource, kind: str, namespace: str, params: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    said = json.loads(await api.list_all(resource, namespace, params))
    # Items of a list do not say their kind.
    return [{**item, "kind": kind} for item in said.get("items") or []]


async def _read_metrics(
    api: KubernetesApi, namespace: str, pod: str, port: int, live: Live
) -> None:
    try:
        page = await api.list_all(_resource("", f"pods/{pod}:{port}/proxy/metrics"), namespace, {})
    except ApiFault as fault:
        forbidden = fault.status == HTTPStatus.FORBIDDEN
        why = "the right to get pods/proxy is missing" if forbidden else str(fault)
        live.silent[pod] = f"its /metrics on port {port}: {why}"
    else:
        live.pages[pod] = page.decode("utf-8", "replace")


def _resource(group: str, plural: str) -> Resource:
    return Resource(group, plural, PODS.read)
