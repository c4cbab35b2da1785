"""The admin API: metrics, explanations, the fleet's state. Not for the public listener."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response

from gateway.api import openapi
from gateway.api.access import Caller
from gateway.api.admin_replicas import replica_routes
from gateway.api.asgi import ClientRequest
from gateway.api.endpoints import find
from gateway.api.envelope import shape_errors
from gateway.api.probes import add_probes
from gateway.errors import PathNotFound, PromptTooLarge
from gateway.fleet import FleetView
from gateway.observability.record import RequestRecord
from gateway.pipeline import Pipeline
from gateway.placement import Asked
from gateway.reload import Reloader
from gateway.replicas.operations import Operations
from routing.types import Decision, RankedCandidate


def build_admin_app(
    pipeline: Callable[[], Pipeline],
    view: FleetView,
    operations: Operations,
    reloader: Reloader,
    why_not_ready: Callable[[], str | None],
) -> FastAPI:
    """Return the admin application.

    Args:
        pipeline: Returns the one in force, which decides for explanations without forwarding.
        view: Brings the gauges up to date before a scrape, and tells the fleet's status.
        operations: What operators may do to replicas.
        reloader: Loads the configuration again.
        why_not_ready: For /readyz; see `add_probes`.
    """
    app = FastAPI(title="Warmroute admin", docs_url=None, redoc_url=None, openapi_url=None)
    shape_errors(app)
    app.include_router(replica_routes(operations))

    @app.get("/metrics")
    async def metrics_page() -> Response:
        return Response(view.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/admin/openapi.json")
    async def public_api() -> dict[str, Any]:
        return openapi.document()

    @app.get("/admin/status")
    async def fleet_status() -> dict[str, Any]:
        return view.status()

    @app.post("/admin/explain")
    async def explain(
        request: Request, path: str = "/v1/chat/completions", api_key: str = ""
    ) -> Response:
        """Answer where a request would go now, and why. Nothing is forwarded or booked.

        The body and the headers are those of the request, `path` is the one it would come in on,
        and `api_key` the name of its caller's key, for rules and tenants.
        """
        body = await request.body()
        current = pipeline()
        if len(body) > current.config.limits.max_body_bytes:
            raise PromptTooLarge("The body is larger than limits.max_body_bytes.")
        told = await _explain(current, request, path, api_key, body)
        return Response(told, media_type="application/json")

    @app.post("/admin/reload")
    async def reload() -> dict[str, Any]:
        """Load the configuration file again, and answer what changed.

        One that cannot be used changes nothing; the answer says what is wrong, and where.
        """
        return (await reloader.reload("operator")).report()

    add_probes(app, why_not_ready, tell_why=True)
    return app


async def _explain(
    pipeline: Pipeline, request: Request, path: str, key_name: str, body: bytes
) -> bytes:
    endpoint = find(path)
    if endpoint is None or endpoint.kind is None:
        raise PathNotFound("`path` must be a path whose requests are routed.")
    headers = request.headers.raw
    caller = Caller(key_name)
    asking = ClientRequest("POST", path, path.encode(), headers, body, "http", "explain", caller)
    record = RequestRecord("explain", path, pipeline.now())
    asking, read = pipeline.isolate(asking, pipeline.read(asking, endpoint.kind))
    asked = await pipeline.ask(asking, read, record)
    return explanation(asked, pipeline.placer.decide(asked))


def explanation(asked: Asked, decision: Decision) -> bytes:
    """Return a decision as JSON, with every candidate's terms, best first."""
    passed_over = asked.choice.passed_over
    told = {
        "model": asked.choice.offer.name,
        "pool": asked.choice.model.key,
        "pools": {pool.key: pool.weight for pool in asked.choice.offer.pools},
        "passed_over": passed_over.key if passed_over is not None else None,
        "rule": asked.choice.rule,
        "replica": decision.replica,
        "policy": {"name": asked.choice.route.name, "kind": decision.policy},
        "rung": decision.rung,
        "reason": decision.reason,
        "load_cap": decision.load_cap,
        "num_prompt_tokens": asked.prompt.num_tokens,
        "problem": asked.prompt.problem,
        "candidates": [
            {**_candidate(ranked), "price": _price(asked, ranked)} for ranked in decision.ranked
        ],
    }
    return json.dumps(told, indent=2).encode()


def _price(asked: Asked, ranked: RankedCandidate) -> dict[str, Any]:
    """Return what each tier serves and what is computed, with its seconds, at the prices of now.

    Differs from `matched_tokens` where loading from a tier would take longer than computing.
    """
    cost = asked.choice.model.cost
    price = cost.usable(ranked.candidate.match, asked.prompt.num_tokens)
    return {
        "L0": {"tokens": price.l0_tokens, "seconds": 0.0},
        "L1": {"tokens": price.l1_tokens, "seconds": price.l1_s},
        "L2": {"tokens": price.l2_tokens, "seconds": price.l2_s},
        "missing": {"tokens": price.miss_tokens, "seconds": price.prefill_s},
    }


def _candidate(ranked: RankedCandidate) -> dict[str, Any]:
    load, match = ranked.candidate.load, ranked.candidate.match
    return {
        "replica": ranked.candidate.replica,
        "score": ranked.score,
        "terms": dict(ranked.terms),
        "weight": ranked.candidate.weight,
        "load_cap": ranked.load_cap,
        "over_cap": ranked.over_cap,
        "in_flight": load.in_flight,
        "outstanding_prefill_s": load.prefill_s,
        "matched_tokens": {
            "L0": match.l0_tokens,
            "L1": match.l1_tokens,
            "L2": match.l2_tokens,
            "confirmed_L0": match.confirmed_tokens,
        },
    }
