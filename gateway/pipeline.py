"""One request, a straight line. The only file that knows all the steps.

accept -> match a rule -> render, tokenize -> block keys -> look up -> decide and reserve ->
forward and stream back -> observe. docs/architecture.md tells the same story in prose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gateway.api.asgi import ClientRequest, ClientResponse
from gateway.api.endpoints import Endpoint
from gateway.config.models import GatewayConfig
from gateway.errors import ResponseNotFound
from gateway.index.base import PrefixIndex
from gateway.models import Model, Models
from gateway.observability.record import RequestRecord
from gateway.placement import Asked, KeysByBlockSize, Placer, prompt_keys
from gateway.prompt.body import BodyKind, RequestBody, read_body, splice_cache_salt
from gateway.proxy.headers import first
from gateway.proxy.relay import Relay
from gateway.replicas.registry import Registry, Replica
from gateway.rules import Wanted
from gateway.sharing import Sharing
from gateway.tenancy import tenant_salt
from routing.types import PrefixMatch, ReplicaId


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Takes requests from a client to a replica and answers back.

    Attributes:
        config: For the index's deadline, refused fields and isolation.
        now: Monotonic seconds.
    """

    models: Models
    sharing: Sharing
    registry: Registry
    index: PrefixIndex
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
            placed = self.placer.follow(self._holder(endpoint.response_id))
        else:
            body = self.read(request, endpoint.kind)
            request.caller.check_model(body.model)
            request, body = self.isolate(request, body)
            asked = await self.ask(request, body, record)
            placed = self.placer.place(asked, self._home(request, asked.choice.model))
            record.decided(placed.decision, self.now())
        await self.relay.forward(request, placed, client, record)

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

    def _home(self, request: ClientRequest, model: Model) -> Replica | None:
        """Return the replica that opened the request's session, unless it is leaving or ill."""
        home = self.registry.get(self.relay.stored.session(request.headers) or ReplicaId(""))
        if home is None or home.model_key != model.key or not home.keeps_sessions:
            return None
        return home

    async def ask(self, request: ClientRequest, body: RequestBody, record: RequestRecord) -> Asked:
        """Gather what a decision needs: the pool, its route, token ids, block keys and matches.

        Raises:
            ModelNotFound: Nobody serves the model.
        """
        wanted = Wanted(body.model, request.path, request.headers, request.caller.name)
        choice = self.sharing.choose(self.models.offer(wanted), request.headers)
        model, route = choice.model, choice.route
        record.asked(choice, body.stream, self.now())
        prompt = await model.preparer.prepare(body)
        record.prepared(prompt, self.now())
        lora = model.lora(body.model)
        keys = prompt_keys(self.registry, model, prompt, lora, body.cache_salt)
        matches = await self._look_up(keys, record)
        record.looked_up(self.now())
        return Asked(choice, prompt, route.session(request.headers), keys, matches)

    async def _look_up(
        self, keys: KeysByBlockSize, record: RequestRecord
    ) -> Mapping[ReplicaId, PrefixMatch]:
        try:
            if not self.index.waits:
                return await self.index.lookup(keys)
            async with asyncio.timeout(self.config.index.lookup_timeout_s):
                return await self.index.lookup(keys)
        except TimeoutError:
            record.lookup_timed_out = True
        except Exception:  # noqa: BLE001 - fail open: an index may be behind a network
            record.lookup_failed = True
        return {}

    def _holder(self, response_id: str | None) -> ReplicaId:
        replica = self.relay.stored.response(response_id or "")
        if replica is None or self.registry.get(replica) is None:
            raise ResponseNotFound("No replica is known to hold this response.")
        return replica
