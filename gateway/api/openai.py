"""The public API: the hot paths as a plain ASGI application, everything else behind FastAPI.

A hot path never meets a framework's routing, validation or middleware: they cost more than the
rest of a request (docs/adr/0007), and the body goes to the replica as it came.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import MappingProxyType

from gateway.api.asgi import (
    AsgiApp,
    ClientLeft,
    ClientResponse,
    Receive,
    Scope,
    Send,
    read_request,
    while_connected,
)
from gateway.config.models import GatewayConfig
from gateway.errors import GatewayError, MethodNotAllowed
from gateway.observability.logging import EventLog
from gateway.observability.record import Observer, RequestRecord
from gateway.pipeline import Pipeline
from gateway.prompt.body import BodyKind
from gateway.proxy.headers import first

ROUTED_PATHS: Mapping[str, BodyKind] = MappingProxyType(
    {
        "/v1/chat/completions": BodyKind.CHAT,
        "/v1/completions": BodyKind.COMPLETION,
        "/v1/embeddings": BodyKind.OTHER,
    }
)
"""Paths whose requests go to a replica, and how their bodies hold the prompt."""

# A request id that a client sends ends up in logs and headers, so it is taken only if it is short.
MAX_REQUEST_ID_BYTES = 128


class PublicApi:
    """The ASGI application of the public listener.

    Args:
        pipeline: Serves the routed paths.
        others: Serves all other paths.
        observer: Told of the end of every routed request.
        config: For the limits and timeouts of a request.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        others: AsgiApp,
        observer: Observer,
        log: EventLog,
        config: GatewayConfig,
    ) -> None:
        self._pipeline = pipeline
        self._others = others
        self._observer = observer
        self._log = log
        self._max_body_bytes = config.limits.max_body_bytes
        self._receive_s = config.timeouts.receive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        kind = ROUTED_PATHS.get(scope["path"]) if scope["type"] == "http" else None
        if kind is None:
            await self._others(scope, receive, send)
        else:
            await self._routed(kind, scope, receive, ClientResponse(send))

    async def _routed(
        self, kind: BodyKind, scope: Scope, receive: Receive, client: ClientResponse
    ) -> None:
        """Serve one request, and turn whatever went wrong into an answer and a record of it."""
        record = RequestRecord(_request_id(scope), scope["path"], self._pipeline.now())
        try:
            await self._serve(kind, scope, receive, client, record)
        except ClientLeft:
            record.client_left = True
        except GatewayError as error:
            record.failed(error)
            await client.fail(error)
        except Exception:  # noqa: BLE001 - the one border: a bug of ours must still be an answer
            self._log.exception("internal_error", request_id=record.request_id)
            bug = GatewayError("The gateway failed; its log has the details.")
            record.failed(bug)
            if not client.status:
                await client.fail(bug)
        finally:
            self._observer.ended(record)

    async def _serve(
        self,
        kind: BodyKind,
        scope: Scope,
        receive: Receive,
        client: ClientResponse,
        record: RequestRecord,
    ) -> None:
        if scope["method"] != "POST":
            raise MethodNotAllowed("This path takes POST only.", allowed="POST")
        request = await read_request(scope, receive, self._max_body_bytes, self._receive_s)
        async with while_connected(receive, client):
            await self._pipeline.handle(request, kind, client, record)


def _request_id(scope: Scope) -> str:
    sent = first(scope["headers"], b"x-request-id")
    if sent and len(sent) <= MAX_REQUEST_ID_BYTES:
        return sent.decode("latin-1")
    return uuid.uuid4().hex
