"""One request, a straight line. The only file that knows all the steps.

accept -> match a rule -> render, tokenize -> block keys -> look up -> decide and reserve ->
forward and stream back -> observe. docs/architecture.md tells the same story in prose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.api.asgi import ClientRequest, ClientResponse
from gateway.api.endpoints import Endpoint
from gateway.config.models import GatewayConfig
from gateway.errors import ResponseNotFound
from gateway.index.base import PrefixIndex
from gateway.l2.asking import SharedQuestion, credit_shared
from gateway.models import Models
from gateway.observability.record import RequestRecord
from gateway.placement import Asked, KeysByBlockSize, Placement, Placer, hash_specs
from gateway.prompt.body import BodyKind, RequestBody, read_body, splice_cache_salt
from gateway.prompt.forwarding import is_forwardable, splice_token_ids, takes_token_ids
from gateway.prompt.json import PIECE_BYTES
from gateway.proxy.headers import first
from gateway.proxy.relay import Relay
from gateway.proxy.sampling import asks_usage, takes_report, with_report, with_usage
from gateway.replicas.registry import Registry
from gateway.rules import Wanted
from gateway.shared.pace import Pace
from gateway.sharing import Sharing
from gateway.tenancy import tenant_salt
from routing.hashing import HashSpec
from routing.types import PrefixMatch, ReplicaId

# Longer bodies are read in a thread.
INLINE_JSON_BYTES = PIECE_BYTES
# An index keeps its own deadline, as only it can say what it knows without an answer. Where it does
# not, or our loop is late, it may take so many times as long: a request must never hang on it.
BACKSTOP_TIMES = 10
# Writing out 16,000 token ids takes 0.3 ms.
INLINE_TOKEN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Takes requests from a client to a replica and answers back.

    Attributes:
        pace: Asked for the other gateways' loads, and told of decisions; None where there are none.
        config: For the index's deadline, refused fields and isolation.
        now: Monotonic seconds.
    """

    models: Models
    sharing: Sharing
    registry: Registry
    index: PrefixIndex
    pace: Pace | None
    placer: Placer
    relay: Relay
    config: GatewayConfig
    now: Callable[[], float]

    async def handle(
        self,
        request: ClientRequest,
        endpoint: Endpoint,
        client: ClientResponse,
        record: RequestRecord,
    ) -> None:
        """Serve one request.

        Raises:
            GatewayError: No replica's answer has begun; the caller makes the error answer of it.
        """
        if endpoint.kind is None:
            placed = self.placer.follow(await self._holder(endpoint.response_id))
        else:
            request, asked = await self.understand(request, endpoint.kind, record)
            if asked.choice.model.forward_token_ids:
                request = await self._with_token_ids(request, asked)
            placed = self.placer.place(asked)
            if self.pace is not None:
                self.pace.tell()
            record.decided(placed.placement.decision, self.now())
            request = self._asking(request, asked.prompt.body, placed.lease.replica, record)
        await self.relay.forward(request, placed, client, record)

    async def foresee(
        self, request: ClientRequest, endpoint: Endpoint, record: RequestRecord
    ) -> Placement:
        """Return where `handle` would send a request now. Nothing is booked or forwarded.

        Raises:
            GatewayError: As `handle`, before it forwards.
        """
        if endpoint.kind is None:
            return Placement(await self._holder(endpoint.response_id))
        _, asked = await self.understand(request, endpoint.kind, record)
        return self.placer.choose(asked)

    async def understand(
        self, request: ClientRequest, kind: BodyKind, record: RequestRecord
    ) -> tuple[ClientRequest, Asked]:
        """Return a request as a replica of its tenant gets it, and what a decision needs of it.

        Raises:
            GatewayError: It cannot be routed, or its caller may not ask for that.
        """
        if len(request.body) <= INLINE_JSON_BYTES:
            body = self.read(request, kind)
        else:
            body = await asyncio.to_thread(self.read, request, kind)
        request.caller.check_model(body.model)
        request, body = self.isolate(request, body)
        return request, await self.ask(request, body, record)

    async def _with_token_ids(self, request: ClientRequest, asked: Asked) -> ClientRequest:
        """Give a request its token ids, where every replica that may get it runs them."""
        model, prompt = asked.choice.model, asked.prompt
        packed = prompt.packed_tokens
        if packed is None or not is_forwardable(prompt) or model.lora(prompt.body.model):
            return request
        replicas = self.registry.of_model(model.key)
        if not all(takes_token_ids(replica.facts.version) for replica in replicas):
            return request
        if len(packed) <= INLINE_TOKEN_BYTES:
            body = splice_token_ids(request.body, packed)
        else:
            body = await asyncio.to_thread(splice_token_ids, request.body, packed)
        return replace(request, body=body)

    def read(self, request: ClientRequest, kind: BodyKind) -> RequestBody:
        """Decode a request's body.

        Raises:
            InvalidRequest: It cannot be routed.
        """
        content_type = (first(request.headers, b"content-type") or b"").decode("latin-1")
        refused = self.config.limits.refused_fields
        return read_body(request.body, kind, content_type=content_type, refused_fields=refused)

    def isolate(
        self, request: ClientRequest, body: RequestBody
    ) -> tuple[ClientRequest, RequestBody]:
        """Put a request into its tenant's part of the caches.

        Raises:
            InvalidRequest: The tenant is not named.
        """
        isolation = self.config.isolation
        salt = tenant_salt(isolation, request.caller.name, request.headers, body.cache_salt)
        if salt is None or not body.has_prompt:
            return request, body
        if isolation.inject_cache_salt:
            request = replace(request, body=splice_cache_salt(request.body, salt))
        return request, body.salted(salt)

    def _asking(
        self, request: ClientRequest, body: RequestBody, replica: ReplicaId, record: RequestRecord
    ) -> ClientRequest:
        """Have the replica tell us more than the client asked for, where that is configured."""
        config = self.config.index
        if asks_usage(body, config.usage_sample, self.placer.rng):
            request = replace(request, body=with_usage(request.body))
            record.asks_usage = True
        if config.reseed and self.registry[replica].is_partly_known and takes_report(body):
            request = replace(request, body=with_report(request.body))
        return request

    async def ask(self, request: ClientRequest, body: RequestBody, record: RequestRecord) -> Asked:
        """Gather what a decision needs: home, pool, route, token ids, block keys and matches.

        Raises:
            ModelNotFound: Nobody serves the model.
        """
        wanted = Wanted(body.model, request.path, request.headers, request.caller.name)
        offer = self.models.offer(wanted)
        home_id = await self.relay.stored.home(request.headers, body.continued)
        choice = self.sharing.choose(offer, request.headers, home_id)
        model, route = choice.model, choice.route
        record.asked(choice, body.stream, self.now())
        specs: Sequence[HashSpec] = ()
        if body.kind is BodyKind.COMPLETION or model.preparer.has_tokenizer:
            specs = hash_specs(self.registry, model, model.lora(body.model), body.cache_salt)
        prompt = await model.preparer.prepare(body, specs, model.max_model_len)
        record.prepared(prompt, self.now())
        keys = {} if prompt.problem else {spec.block_size: prompt.keys(spec) for spec in specs}
        question, shared_tokens = None, 0
        if model.shared is not None and not prompt.problem:
            lora = model.lora(body.model)
            question = SharedQuestion(model.shared, prompt, lora, self.now)
        matches = await self._look_up(keys, record)
        if question is not None:
            replicas = self.registry.of_model(model.key)
            prefix = await question.answer()
            matches = credit_shared(matches, replicas, prefix, model.host, prompt.num_tokens)
            record.shared, record.shared_late = question.prefix, question.is_late
            shared_tokens = 0 if prefix is None else prefix.num_tokens
        record.looked_up(matches, self.now())
        session = route.session(request.headers)
        return Asked(choice, prompt, session, keys, matches, shared_tokens, home_id)

    async def _look_up(
        self, keys: KeysByBlockSize, record: RequestRecord
    ) -> Mapping[ReplicaId, PrefixMatch]:
        """Return what replicas hold of a prompt; meanwhile hear what other gateways sent them."""
        timeout_s = self.config.index.lookup_timeout_s
        heard = self.pace.ask(timeout_s) if self.pace is not None else None
        until = self.now() + timeout_s
        try:
            if not self.index.waits:
                return await self.index.lookup(keys)
            async with asyncio.timeout(BACKSTOP_TIMES * timeout_s):
                matches = await self.index.lookup(keys)
                if heard is not None and not heard.done():
                    await asyncio.wait({heard}, timeout=max(0.0, until - self.now()))
                return matches
        except TimeoutError:
            record.lookup_timed_out = True
        except Exception:  # noqa: BLE001 - fail open: an index may be behind a network
            record.lookup_failed = True
        return {}

    async def _holder(self, response_id: str | None) -> ReplicaId:
        replica = await self.relay.stored.response(response_id or "")
        if replica is None or self.registry.get(replica) is None:
            raise ResponseNotFound("No replica is known to hold this response.")
        return replica
