"""A client of one cluster's API: credentials, TLS, list and watch. All that fails is an `ApiFault`.

lightkube reads kubeconfigs and service accounts, and makes a client of them that reads a service
account's token anew when it is refused. List and watch are spoken here: docs/adr/0013 says why.

To be imported only where a Kubernetes discovery is configured: it takes 0.15 s and 8 MB.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx2
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from gateway.replicas.discovery.kubernetes_collection import Resource, refusal
from gateway.replicas.discovery.kubernetes_objects import ApiFault

# The API server is in the same network, or behind one load balancer; the next try comes soon.
_CONNECT_S = 5.0
# A list of thousands of pods takes a busy API server seconds, never this long.
_ANSWER_S = 30.0
# etcd takes objects of 1.5 MiB (its --max-request-bytes), and JSON is longer than what it stores.
_LINE_BYTES = 16 * 1024 * 1024


class KubernetesApi:
    """An open client.

    Args:
        config: Cluster, user and namespace.
    """

    def __init__(self, config: SingleConfig) -> None:
        self.namespace = config.namespace
        """The pod's own namespace, or that of the kubeconfig's context."""
        self._server = config.cluster.server
        timeout = httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S)
        # As our other control traffic it ignores proxies of the environment: those lead outside.
        params = ConnectionParams(timeout=timeout, trust_env=False)
        # lightkube insists on a user; a cluster behind `kubectl proxy` has none.
        self._client = AsyncClient(config._replace(user=config.user or User()), params)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def list_all(
        self, resource: Resource, namespace: str, params: Mapping[str, str]
    ) -> bytes:
        """Return the answer to a list, not decoded.

        Raises:
            ApiFault: There is none, or it is a refusal.
        """
        request = self._client.build_request("GET", resource.path(namespace), params=params)
        try:
            async with asyncio.timeout(_ANSWER_S):
                async with aclosing(await self._send(request)) as response:
                    body = await self._body(response)
        except TimeoutError as error:
            raise ApiFault(f"no answer from {self._server} within {_ANSWER_S:g} s") from error
        _refuse(response, body, "list", resource, namespace)
        return body

    @asynccontextmanager
    async def watch(
        self, resource: Resource, namespace: str, params: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Open a watch; it is open when this returns.

        Args:
            resource: What to watch.
            namespace: Where.
            params: Selector, resourceVersion and timeoutSeconds.
            silence_s: After so long without a byte the connection is dead.

        Returns:
            The lines as they come, all that one read brought at once.

        Raises:
            ApiFault: It was refused, or broke, or fell silent.
        """
        request = self._client.build_request(
            "GET",
            resource.path(namespace),
            params={**params, "watch": "true", "allowWatchBookmarks": "true"},
            timeout=httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S, read=silence_s),
        )
        async with aclosing(await self._send(request)) as response:
            if response.status_code != httpx2.codes.OK:
                _refuse(response, await self._body(response), "watch", resource, namespace)
            async with aclosing(self._lines(response)) as lines:
                yield lines

    async def _lines(self, response: httpx2.Response) -> AsyncGenerator[list[bytes], None]:
        # Not httpx's lines: they also end at characters that JSON may hold, such as U+0085.
        rest = b""
        try:
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LINE_BYTES:
                    raise ApiFault(f"{self._server} sent a line of over {_LINE_BYTES} bytes")
                if lines:
                    yield lines
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await self._client.send(request, stream=True)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        except Exception as error:
            raise ApiFault(f"no credentials for {self._server}: {_text(error)}") from error

    async def _body(self, response: httpx2.Response) -> bytes:
        try:
            return await response.aread()
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx2.HTTPError) -> ApiFault:
        return ApiFault(f"lost or never reached {self._server}: {_text(error)}")


def open_api(kubeconfig: str | None, service_account: Path) -> KubernetesApi:
    """Return a client; blocks for the files that it reads.

    Args:
        kubeconfig: File to use, with its current context; None for the pod's service account.
        service_account: Where that is mounted.

    Raises:
        ApiFault: The files are missing or make no sense.
    """
    try:
        return KubernetesApi(_read(kubeconfig, service_account))
    except Exception as error:
        source = kubeconfig or f"the service account of this pod, {service_account}"
        raise ApiFault(f"cannot use {source}: {_text(error)}") from error


def _read(kubeconfig: str | None, service_account: Path) -> SingleConfig:
    if kubeconfig is None:
        contexts = KubeConfig.from_service_account(service_account)
    else:
        contexts = KubeConfig.from_file(kubeconfig)
    config = contexts.get()
    if config is None:
        raise ConfigError("no current context")
    return config


def _text(error: Exception) -> str:
    # lightkube lets through what a bad file or credential plugin leads to, from KeyError over
    # those of YAML and msgspec to ssl.SSLError, and some of them say little without their type.
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _refuse(
    response: httpx2.Response, body: bytes, verb: str, resource: Resource, namespace: str
) -> None:
    status = response.status_code
    if status == httpx2.codes.OK:
        return
    text = refusal(verb, resource, namespace, status, body)
    # The API server gives seconds, never a date.
    seconds = response.headers.get("retry-after", "")
    raise ApiFault(text, status, float(seconds) if seconds.isdecimal() else 0.0)
