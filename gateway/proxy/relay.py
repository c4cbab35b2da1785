"""One request to one replica after the other, until one answers; and the answer back.

A request goes on to the next replica only where nothing can have run: nobody listened, or the
replica said before generating that it takes no more. In every ending the lease ends, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from gateway.api.asgi import ClientRequest, ClientResponse
from gateway.engines import vllm
from gateway.errors import (
    ConnectTimeout,
    GatewayError,
    NoEligibleReplica,
    ReplicaTimeout,
    ReplicaUnreachable,
    StreamBroken,
    UpstreamError,
)
from gateway.models import Choice
from gateway.observability.record import RequestRecord
from gateway.placement import Asked, Placed, Placer
from gateway.proxy.headers import (
    CREDENTIALS,
    Header,
    first,
    is_event_stream,
    request_headers,
    response_headers,
)
from gateway.proxy.retry import NOT_BEGUN_STATUSES, RetryBudget
from gateway.proxy.sampling import without_usage
from gateway.proxy.transport import Deadlines, Transport, UpstreamRequest, UpstreamResponse
from gateway.replicas.registry import MAX_BUSY_S, Registry, Replica, ReplicaState
from gateway.stored import Notes, Stored
from routing.load import LoadBook
from routing.types import PrefixMatch, ReplicaId

# What a gateway between us and the engine says of an engine that failed it.
_FAILED_STATUSES = frozenset({502, 504})
# Streams whose events have names; Anthropic's clients pass over an event without one.
_NAMED_EVENTS = frozenset({"/v1/messages", "/v1/responses"})
# An SSE comment: clients pass over it.
_NOBODY = ReplicaId("")
_HEARTBEAT = b": waiting\n\n"


@dataclass(frozen=True, slots=True)
class Relay:
    """Forwards requests and streams answers back.

    Attributes:
        deadlines: Of the exchange with a replica.
        heartbeat_s: Between two comments while a stream waits for its first token; None for none.
        max_tries: Replicas that one request is sent to at most.
        decision_headers: Whether clients are told where their request went.
        keeps_credentials: Whether a client's own Authorization reaches the replica.
        rng: Makes trace ids.
        now: Monotonic seconds.
    """

    registry: Registry
    book: LoadBook
    placer: Placer
    transport: Transport
    stored: Stored
    budget: RetryBudget
    deadlines: Deadlines
    heartbeat_s: float | None
    max_tries: int
    decision_headers: bool
    keeps_credentials: bool
    rng: Random
    now: Callable[[], float]

    async def forward(
        self, request: ClientRequest, placed: Placed, client: ClientResponse, record: RequestRecord
    ) -> None:
        """Send a placed request to its replica, or to the next one, and stream the answer back.

        Raises:
            UpstreamError: The replica failed, and nothing was sent to the client yet.
            NoEligibleReplica: No replica could be reached.
        """
        self.budget.request()
        try:
            for position in range(self.max_tries):
                replica = self.registry.get(placed.at(position) or _NOBODY)
                if replica is None or (position and replica.state is not ReplicaState.READY):
                    continue  # it left, or was taken out, after the decision
                self.placer.move(placed, replica)
                record.tried(replica.replica_id)
                upstream = await self._try(request, replica, placed, position, record)
                if upstream is not None:
                    if record.asks_usage:
                        upstream = without_usage(upstream, record.usage.feed)
                    try:
                        await self._answer(upstream, replica, placed, client, record)
                    finally:
                        upstream.close()
                    return
            raise NoEligibleReplica("The chosen replicas are gone.")
        finally:
            self.book.end(placed.lease)

    async def _try(
        self,
        request: ClientRequest,
        replica: Replica,
        placed: Placed,
        position: int,
        record: RequestRecord,
    ) -> UpstreamResponse | None:
        """Return the response of the replica at a position, or None where the request moves on."""
        upstream = self._upstream_request(request, replica, record)
        try:
            response = await self.transport.request(replica.origin, upstream, self.deadlines)
        except ReplicaUnreachable as error:
            self.registry.failed(replica, error.reason, certain=True)
            if self._next(placed, position) is not None and self.budget.take():
                record.retried(replica.replica_id, error.reason)
                return None
            if isinstance(error, ConnectTimeout):
                raise
            raise NoEligibleReplica("No replica could be reached.") from None
        except UpstreamError as error:
            self.registry.failed(replica, error.reason)
            raise
        if response.status not in NOT_BEGUN_STATUSES:
            return response
        self.registry.busy(replica, _retry_after_s(response.headers))
        other = self._next(placed, position)
        free = other is not None and placed.is_under_cap(other) and self.registry.is_free(other)
        if not free or not self.budget.take():
            return response
        record.retried(replica.replica_id, f"status_{response.status}")
        response.close()
        return None

    def _next(self, placed: Placed, position: int) -> ReplicaId | None:
        return placed.at(position + 1) if position + 1 < self.max_tries else None

    def _upstream_request(
        self, request: ClientRequest, replica: Replica, record: RequestRecord
    ) -> UpstreamRequest:
        key, rank = replica.upstream_key, replica.rank
        without = request.undone | (frozenset() if self.keeps_credentials else CREDENTIALS)
        if record.asks_usage:
            without |= {b"accept-encoding"}  # what is compressed cannot be taken out of
        if rank is not None:
            without |= {vllm.RANK_HEADER}  # a client's own would lead where we do not count it
        headers = request_headers(
            request.headers,
            client=request.client,
            scheme=request.scheme,
            request_id=record.request_id.encode(),
            traceparent=self._traceparent(),
            bearer=key.encode() if key else None,
            without=without,
        )
        if rank is not None:
            headers.append((vllm.RANK_HEADER, b"%d" % rank))
        return UpstreamRequest(request.method.encode(), request.target, headers, request.body)

    def _traceparent(self) -> bytes:
        # W3C Trace Context, version 00: ids are random and not secret.
        return b"00-%032x-%016x-01" % (self.rng.getrandbits(128), self.rng.getrandbits(64))

    async def _answer(
        self,
        upstream: UpstreamResponse,
        replica: Replica,
        placed: Placed,
        client: ClientResponse,
        record: RequestRecord,
    ) -> None:
        """Stream a replica's answer to the client, piece by piece as it comes.

        The client's headers wait for the body's first byte: until then a broken replica can still
        be told with a status of its own.
        """
        headers = response_headers(upstream.headers)
        if upstream.status == 503 and first(upstream.headers, b"retry-after") is None:
            headers.append((b"retry-after", b"1"))  # engines leave it out, and clients need it
        if self.decision_headers:
            headers += _decision_headers(placed)
        try:
            piece = await self._first_piece(upstream, headers, client)
            self.book.first_token(placed.lease, self.now())
            record.began(upstream.status, self.now())
            if upstream.status >= 400:
                self.placer.refused(placed)
            notes = await self.stored.notes(upstream.headers, replica.replica_id, record.path)
            if not client.status:
                await client.start(upstream.status, headers)
            piece = await _pass_on(piece, upstream, client, notes, record)
        except (StreamBroken, ReplicaTimeout) as error:
            self.registry.failed(replica, error.reason)
            if not client.status:
                raise
            record.failed(error)
            await end_broken(client, record, error)
            return
        if upstream.status in _FAILED_STATUSES:
            self.registry.failed(replica, f"status_{upstream.status}")
        elif upstream.status not in NOT_BEGUN_STATUSES:  # being full is neither good nor bad
            self.registry.succeeded(replica)
        await client.end(piece)  # the last piece and the end in one write
        record.usage.feed(piece)

    async def _first_piece(
        self, upstream: UpstreamResponse, headers: Sequence[Header], client: ClientResponse
    ) -> bytes:
        """Return the body's first piece; a long wait for a stream's is filled with comments."""
        if self.heartbeat_s is None or not is_event_stream(upstream.headers):
            return await upstream.read()
        while True:
            try:
                async with asyncio.timeout(self.heartbeat_s):
                    return await upstream.read()
            except TimeoutError:
                if not client.status:
                    await client.start(upstream.status, headers)
                await client.write(_HEARTBEAT)


async def _pass_on(
    piece: bytes,
    upstream: UpstreamResponse,
    client: ClientResponse,
    notes: Notes,
    record: RequestRecord,
) -> bytes:
    """Pass a body on, piece by piece from its first one; return the last piece, not yet sent."""
    if notes.reading:
        await notes.feed(piece)
    while not upstream.ended:
        await client.write(piece)
        record.usage.feed(piece)
        piece = await upstream.read()
        if notes.reading:
            await notes.feed(piece)
    return piece


async def end_broken(client: ClientResponse, record: RequestRecord, error: GatewayError) -> None:
    """End an answer that broke after it began: the client must be able to tell.

    A stream of events ends with an error event, and never with an invented [DONE]. Any other body
    is left unfinished, so that the server cuts the connection and the length is seen to be wrong.
    """
    if client.is_event_stream:
        # The blank line ends an event that the replica may have left half sent.
        await client.write(b"\n\n" + error.event(named=record.path in _NAMED_EVENTS))
        await client.end()


def _retry_after_s(headers: Sequence[Header]) -> float:
    value = first(headers, b"retry-after") or b""
    return float(value) if value.isdigit() else min(1.0, MAX_BUSY_S)


def _decision_headers(placed: Placed) -> list[Header]:
    decision, asked = placed.placement.decision, placed.placement.asked
    headers: list[Header] = [(b"x-warmroute-replica", placed.lease.replica.encode())]
    if asked is None:
        return headers
    headers += _choice_headers(asked.choice)
    if decision is not None:
        headers.append((b"x-warmroute-policy", decision.policy.encode()))
    match = placed.match
    return [
        *headers,
        (b"x-warmroute-reason", _reason(placed)),
        (b"x-warmroute-tier", (match.deepest_tier or "none").encode()),
        (b"x-warmroute-matched-tokens", str(match.total_tokens).encode()),
        *_tier_headers(asked, match),
    ]


def _reason(placed: Placed) -> bytes:
    placement, replica = placed.placement, placed.lease.replica
    if replica == placement.home:
        return b"session"
    decision = placement.decision
    if decision is None or replica != decision.replica:
        return b"retry"
    return decision.reason.encode()


def _tier_headers(asked: Asked, match: PrefixMatch) -> list[Header]:
    """Tell what each tier serves and what is left, as tokens/seconds, where there is a far tier."""
    model = asked.choice.model
    if model.shared is None and not match.l1_tokens and not match.l2_tokens:
        return []
    price = model.cost.usable(match, asked.prompt.num_tokens)
    told = (
        f"L0={price.l0_tokens}/0, L1={price.l1_tokens}/{price.l1_s:.4f}, "
        f"L2={price.l2_tokens}/{price.l2_s:.4f}, missing={price.miss_tokens}/{price.prefill_s:.4f}"
    )
    return [(b"x-warmroute-tiers", told.encode())]


def _choice_headers(choice: Choice) -> list[Header]:
    """Tell the pool where it is not the only one of its name, and the rule where there is one."""
    headers: list[Header] = []
    if len(choice.offer.pools) > 1:
        headers.append((b"x-warmroute-pool", choice.model.key.encode()))
    if choice.rule is not None:
        headers.append((b"x-warmroute-rule", choice.rule.encode()))
    return headers
