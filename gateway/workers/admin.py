"""The admin listener of a supervisor: one face of all its workers. Plain ASGI."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from gateway.api.access import ANYBODY
from gateway.api.asgi import ClientLeft, ClientRequest, ClientResponse, Receive, Scope, Send
from gateway.api.asgi import read_request as read_whole
from gateway.errors import GatewayError, MethodNotAllowed, Starting
from gateway.observability.summing import Sum
from gateway.workers.crew import Crew, Worker
from gateway.workers.kept import State
from gateway.workers.merging import merged

_JSON = ((b"content-type", b"application/json"),)
_TEXT = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
# What concerns the fleet, or changes something at every worker; so does all of /admin/replicas.
_OF_ALL = frozenset({"/admin/status", "/admin/reload", "/admin/flush"})
# What belongs to one connection, or is said anew about a body that is passed on whole.
_NOT_PASSED = frozenset(
    {
        b"connection",
        b"content-encoding",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"transfer-encoding",
    }
)


class CrewAdmin:
    """Answers for all workers.

    What concerns the fleet is asked of all and told as one; an operator's word goes to all. Any
    other question is answered by the first that serves.

    Args:
        crew: The workers.
        total: Of their metrics; hears of workers that are gone.
        own_page: Returns the supervisor's own metrics.
        extra_status: Returns what the status tells beside the workers.
        is_stopping: Whether the supervisor was told to stop.
        max_body_bytes: Of a request to explain.
    """

    def __init__(
        self,
        crew: Crew,
        total: Sum,
        own_page: Callable[[], bytes],
        extra_status: Callable[[], dict[str, Any]],
        is_stopping: Callable[[], bool],
        max_body_bytes: int,
    ) -> None:
        self._crew = crew
        self._total = total
        self._own_page = own_page
        self._extra_status = extra_status
        self._is_stopping = is_stopping
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        client = ClientResponse(send)
        try:
            asked = await read_whole(scope, receive, ANYBODY, self._max_body_bytes)
            await self._answer(asked, client)
        except ClientLeft:
            return
        except GatewayError as error:
            await client.fail(error)

    async def _answer(self, asked: ClientRequest, client: ClientResponse) -> None:
        own = {"/livez": self._live, "/readyz": self._ready, "/metrics": self._metrics}
        if asked.path in own:
            if asked.method not in {"GET", "HEAD"}:
                raise MethodNotAllowed("This path takes GET only.", "GET")
            await own[asked.path](client)
        elif asked.path in _OF_ALL or asked.path.startswith("/admin/replicas"):
            await self._ask_all(asked, client)
        else:
            await self._ask_one(asked, client)

    async def _live(self, client: ClientResponse) -> None:
        await _tell(client, 200, {"status": "alive"})

    async def _ready(self, client: ClientResponse) -> None:
        why_not = await self._why_not_ready()
        if why_not is None:
            await _tell(client, 200, {"status": "ready"})
        else:
            await _tell(client, 503, {"status": "not_ready", "reason": why_not})

    async def _why_not_ready(self) -> str | None:
        """Return what speaks against it: one worker is enough, and none may be in its first start.

        A worker that starts for the first time takes connections already, and could not serve them.
        One that starts again does not, and the others serve.
        """
        if self._is_stopping():
            return "stopping"
        reaching = [worker for worker in self._crew.workers if worker.takes_connections]
        if not reaching:
            return "workers"
        if any(worker.state is State.STARTING for worker in reaching):
            return "starting"
        answers = await self._crew.ask("GET", "/readyz")
        if any(answer.is_success for _, answer in answers):
            return None
        reasons = [_json(answer).get("reason") for _, answer in answers]
        return str(next((reason for reason in reasons if reason), "workers"))

    async def _metrics(self, client: ClientResponse) -> None:
        asked = {worker: worker.pid for worker in self._crew.serving}
        for worker, answer in await self._crew.ask("GET", "/metrics"):
            same = worker.state is State.SERVING and worker.pid == asked.get(worker)
            if answer.is_success and same:
                self._total.note(worker.pid, answer.text)
        await client.start(200, _TEXT)
        await client.end(self._total.page().encode() + self._own_page())

    async def _ask_all(self, asked: ClientRequest, client: ClientResponse) -> None:
        patient = b"wait_s=" in asked.target or asked.path == "/admin/reload"
        target = asked.target.decode("latin-1")
        answers = await self._crew.ask(
            asked.method, target, _passed(asked), asked.body, patient=patient
        )
        if not answers:
            if asked.path != "/admin/status":
                raise _nobody()
            # Why none answers is what somebody looks for here.
            await _tell(client, 200, {"models": [], **self._extra_status()})
            return
        # A replica that one worker has not found yet is known to the others; a file that one
        # refuses is refused.
        good = [answer for _, answer in answers if answer.is_success]
        refused = next((answer for _, answer in answers if not answer.is_success), None)
        if refused is not None and (not good or asked.path == "/admin/reload"):
            await _pass(client, refused)
            return
        told = merged([_json(answer) for answer in good])
        if asked.path == "/admin/status":
            told |= self._extra_status()
        await _tell(client, 200, told)

    async def _ask_one(self, asked: ClientRequest, client: ClientResponse) -> None:
        for worker in self._crew.serving:
            answer = await _ask(worker, asked)
            if answer is not None:
                await _pass(client, answer)
                return
        raise _nobody()


async def _ask(worker: Worker, asked: ClientRequest) -> httpx.Response | None:
    target = asked.target.decode("latin-1")
    return await worker.ask(asked.method, target, _passed(asked), asked.body)


def _passed(asked: ClientRequest) -> Sequence[tuple[bytes, bytes]]:
    return [header for header in asked.headers if header[0] not in _NOT_PASSED]


def _json(answer: httpx.Response) -> dict[str, Any]:
    told = answer.json()
    return told if isinstance(told, dict) else {}


async def _tell(client: ClientResponse, status: int, told: dict[str, Any]) -> None:
    await client.start(status, _JSON)
    await client.end(json.dumps(told).encode())


async def _pass(client: ClientResponse, answer: httpx.Response) -> None:
    headers = [(name.lower(), text) for name, text in answer.headers.raw]
    await client.start(answer.status_code, [h for h in headers if h[0] not in _NOT_PASSED])
    await client.end(answer.content)


def _nobody() -> Starting:
    return Starting("No worker answers.")
