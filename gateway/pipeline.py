"""One request, a straight line. The only file that knows all the steps.

accept -> match a rule -> render, tokenize -> block keys -> look up -> decide and reserve ->
forward and stream back -> observe. docs/architecture.md tells the same story in prose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.api.asgi import ClientRequest, ClientResponse
from gateway.errors import (
    GatewayError,
    NoEligibleReplica,
    ReplicaTimeout,
    ReplicaUnreachable,
    StreamBroken,
)
from gateway.index.base import PrefixIndex
from gateway.models import Models
from gateway.observability.record import RequestRecord
from gateway.placement import Asked, Placer, prompt_keys, session_of
from gateway.prompt.body import BodyKind, RequestBody, read_body
from gateway.proxy.headers import Header, first, request_headers, response_headers
from gateway.proxy.transport import Deadlines, Transport, UpstreamRequest, UpstreamResponse
from gateway.replicas.registry import Registry, Replica, ReplicaState
from routing.load import Lease, LoadBook
from routing.types import Decision

# How many replicas one request may try to connect to. With more than this refusing, the fleet is
# down, and waiting for further ones only delays the answer.
MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Takes requests from a client to a replica and answers back.

    Attributes:
        lookup_timeout_s: Deadline of the index look-up.
        deadlines: Of the exchange with a replica.
        decision_headers: Whether clients are told where their request went.
        now: Monotonic seconds.
    """

    models: Models
    registry: Registry
    index: PrefixIndex
    book: LoadBook
    placer: Placer
    transport: Transport
    lookup_timeout_s: float
    deadlines: Deadlines
    decision_headers: bool
    now: Callable[[], float]

    async def handle(
        self, request: ClientRequest, kind: BodyKind, client: ClientResponse, record: RequestRecord
    ) -> None:
        """Serve one request whose prompt decides where it goes.

        Raises:
            GatewayError: No replica's answer has begun; the caller makes the error answer of it.
        """
        body = read_body(request.body, kind)
        asked = await self.ask(request, body, record)
        decision, lease = self.placer.place(asked)
        record.decided(decision, asked.prompt, self.now())
        await self._forward(request, asked, decision, lease, client, record)

    async def ask(self, request: ClientRequest, body: RequestBody, record: RequestRecord) -> Asked:
        """Gather what a decision needs: the model, its route, token ids, block keys and matches.

        Raises:
            ModelNotFound: Nobody serves the model.
        """
        model = self.models.find(body.model)
        route = self.models.route(model, request.path, request.headers)
        record.asked(model.key, body.stream, self.now())
        prompt = await model.preparer.prepare(body)
        record.prepared(prompt, self.now())
        lora = model.lora(body.model)
        keys = prompt_keys(self.registry, model, prompt, lora, body.cache_salt)
        try:
            async with asyncio.timeout(self.lookup_timeout_s):
                matches = await self.index.lookup(keys)
        except TimeoutError:
            matches = {}
            record.lookup_timed_out = True
        record.looked_up(self.now())
        session = session_of(route, request.headers)
        return Asked(model, route, prompt, session, keys, matches)

    async def _forward(
        self,
        request: ClientRequest,
        asked: Asked,
        decision: Decision,
        lease: Lease,
        client: ClientResponse,
        record: RequestRecord,
    ) -> None:
        """Send to the chosen replica, or to the next one where nothing could be sent."""
        try:
            for replica_id in decision.order[:MAX_TRIES]:
                if replica_id != lease.replica:
                    self.book.end(lease)
                    lease = self.placer.book(asked, replica_id)
                replica = self.registry[replica_id]
                record.tried(replica_id)
                try:
                    upstream = await self._send(request, replica, record)
                except ReplicaUnreachable as error:
                    self.registry.set_state(replica, ReplicaState.EJECTED, error.reason)
                    record.retried(replica_id, error.reason)
                    continue
                try:
                    await self._answer(upstream, lease, decision, client, record)
                finally:
                    upstream.close()
                return
            raise NoEligibleReplica(f"No replica of `{asked.model.key}` could be reached.")
        finally:
            self.book.end(lease)

    async def _send(
        self, request: ClientRequest, replica: Replica, record: RequestRecord
    ) -> UpstreamResponse:
        key = replica.upstream_key
        headers = request_headers(
            request.headers,
            client=request.client,
            scheme=request.scheme,
            request_id=record.request_id.encode(),
            bearer=key.encode() if key else None,
        )
        upstream = UpstreamRequest(request.method.encode(), request.target, headers, request.body)
        return await self.transport.request(replica.origin, upstream, self.deadlines)

    async def _answer(
        self,
        upstream: UpstreamResponse,
        lease: Lease,
        decision: Decision,
        client: ClientResponse,
        record: RequestRecord,
    ) -> None:
        """Stream a replica's answer to the client, piece by piece as it comes.

        The client's headers wait for the body's first byte: until then a broken replica can still
        be told with a status of its own.
        """
        piece = await upstream.read()
        self.book.first_token(lease, self.now())
        record.began(upstream.status, self.now())
        headers = response_headers(upstream.headers)
        if self.decision_headers:
            headers += _decision_headers(decision, lease)
        await client.start(upstream.status, headers)
        try:
            while piece:
                record.usage.feed(piece)
                await client.write(piece)
                piece = await upstream.read()
        except (StreamBroken, ReplicaTimeout) as error:
            record.failed(error)
            await _end_broken(upstream, client, error)
            return
        await client.end()


async def _end_broken(
    upstream: UpstreamResponse, client: ClientResponse, error: GatewayError
) -> None:
    """End an answer that broke after it began: the client must be able to tell.

    A stream of events ends with an error event, and never with an invented [DONE]. Any other body
    is left unfinished, so that the server cuts the connection and the length is seen to be wrong.
    """
    kind = first(upstream.headers, b"content-type") or b""
    if kind.startswith(b"text/event-stream"):
        # The blank line ends an event that the replica may have left half sent.
        await client.write(b"\n\ndata: " + error.body() + b"\n\n")
        await client.end()


def _decision_headers(decision: Decision, lease: Lease) -> list[Header]:
    chosen = next(r for r in decision.ranked if r.candidate.replica == lease.replica)
    match = chosen.candidate.match
    values = {
        b"x-warmroute-replica": lease.replica,
        b"x-warmroute-policy": decision.policy,
        b"x-warmroute-reason": decision.reason if lease.replica == decision.replica else "retry",
        b"x-warmroute-tier": match.deepest_tier or "none",
        b"x-warmroute-matched-tokens": str(match.total_tokens),
    }
    return [(name, value.encode()) for name, value in values.items()]
