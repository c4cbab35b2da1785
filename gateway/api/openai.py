"""The public listener: routed paths as a plain ASGI application, all others behind FastAPI.

A routed path never meets a framework's routing, validation or middleware: they cost more than the
rest of a request (docs/adr/0007), and the body goes to the replica as it came.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence
from random import Random

from gateway.admission import Admission
from gateway.api.access import Caller, Keys
from gateway.api.asgi import (
    AsgiApp,
    ClientLeft,
    ClientResponse,
    Message,
    Receive,
    Scope,
    Send,
    WhileConnected,
    read_request,
)
from gateway.api.cors import Cors
from gateway.api.endpoints import Endpoint, find
from gateway.api.probes import OPEN_PATHS
from gateway.config.models import GatewayConfig
from gateway.errors import Draining, GatewayError, ReplicaTimeout
from gateway.observability.logging import EventLog
from gateway.observability.record import Observer, RequestRecord
from gateway.pipeline import Pipeline
from gateway.proxy.headers import Header, first
from gateway.proxy.relay import end_broken

# A request id that a client sends ends up in logs and headers, so it is taken only if it is short
# and visible ASCII.
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class PublicApi:
    """The ASGI application of the public listener. Made inside the running event loop.

    Args:
        pipeline: Serves the routed paths.
        others: Serves all other paths.
        keys: Who may come in.
        admission: How many at once.
        observer: Told of the end of every routed request.
        config: For CORS, and the limits and timeouts of a request.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        others: AsgiApp,
        keys: Keys,
        admission: Admission,
        observer: Observer,
        log: EventLog,
        config: GatewayConfig,
    ) -> None:
        self._pipeline = pipeline
        self._others = others
        self._keys = keys
        self._admission = admission
        self._observer = observer
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._rng = Random()  # for request ids, which are unique and not secret
        self._cors = Cors(config.cors)
        self._max_body_bytes = config.limits.max_body_bytes
        self._total_s = config.timeouts.total_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return  # no lifespan to keep, and WebSockets are not offered
        headers: Sequence[Header] = scope["headers"]
        preflight = self._cors.preflight(scope["method"], headers)
        if preflight is not None:
            client = ClientResponse(send)
            await client.start(204, preflight)
            await client.end()
            return
        request_id = _request_id(headers, self._rng)
        ours = [*self._cors.headers(headers), (b"x-request-id", request_id.encode())]
        endpoint = find(scope["path"])
        if endpoint is None:
            await self._other(scope, receive, _with_headers(send, ours))
        else:
            record = RequestRecord(request_id, endpoint.label, self._pipeline.now())
            await self._routed(endpoint, scope, receive, ClientResponse(send, ours), record)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a path that no replica answers. All but the probes want a key, unknown ones too."""
        if scope["path"] not in OPEN_PATHS:
            try:
                self._keys.caller(scope["headers"])
            except GatewayError as error:
                await ClientResponse(send).fail(error)
                return
        await self._others(scope, receive, send)

    async def _routed(
        self,
        endpoint: Endpoint,
        scope: Scope,
        receive: Receive,
        client: ClientResponse,
        record: RequestRecord,
    ) -> None:
        """Serve one request, and turn whatever went wrong into an answer and a record of it."""
        try:
            caller = self._keys.caller(scope["headers"])
            endpoint.check_method(scope["method"])
            await self._serve(endpoint, caller, scope, receive, client, record)
        except ClientLeft:
            record.client_left = True
        except asyncio.CancelledError:  # by the listener: its time to drain is over
            await self._fail(client, record, Draining("The gateway is stopping."))
        except GatewayError as error:
            await self._fail(client, record, error)
        except Exception:  # noqa: BLE001 - the one border: a bug of ours must still be an answer
            self._log.exception("internal_error", request_id=record.request_id)
            bug = GatewayError("The gateway failed; its log has the details.")
            await self._fail(client, record, bug)
        finally:
            self._observer.ended(record)

    async def _serve(
        self,
        endpoint: Endpoint,
        caller: Caller,
        scope: Scope,
        receive: Receive,
        client: ClientResponse,
        record: RequestRecord,
    ) -> None:
        request = await read_request(scope, receive, caller, self._max_body_bytes)
        with WhileConnected(self._loop, scope, receive, client):
            await self._admission.enter(caller.name)
            try:
                handled = self._pipeline.handle(request, endpoint, client, record)
                await (handled if self._total_s is None else self._in_time(handled))
            finally:
                self._admission.leave()

    async def _in_time(self, handled: Coroutine[None, None, None]) -> None:
        try:
            async with asyncio.timeout(self._total_s):
                await handled
        except TimeoutError:
            message = f"The request took longer than {self._total_s:g} s."
            raise ReplicaTimeout(message) from None

    async def _fail(
        self, client: ClientResponse, record: RequestRecord, error: GatewayError
    ) -> None:
        record.failed(error)
        if not client.status:
            await client.fail(error)
        elif not client.ended:
            await end_broken(client, record, error)


def _request_id(headers: Sequence[Header], rng: Random) -> str:
    sent = first(headers, b"x-request-id")
    if sent is not None and _REQUEST_ID.fullmatch(sent):
        return sent.decode()
    return f"{rng.getrandbits(128):032x}"


def _with_headers(send: Send, headers: Sequence[Header]) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return wrapped
