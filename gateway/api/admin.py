"""The admin API: metrics, explanations, the fleet's state. Not for the public listener."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request, Response

from gateway.api import openapi
from gateway.api.asgi import ClientRequest
from gateway.api.endpoints import find
from gateway.errors import GatewayError, PathNotFound
from gateway.fleet import FleetView
from gateway.observability.metrics import Metrics
from gateway.observability.record import RequestRecord
from gateway.pipeline import Pipeline
from gateway.placement import Asked
from routing.types import Decision, RankedCandidate


def build_admin_app(
    pipeline: Pipeline, view: FleetView, metrics: Metrics, max_body_bytes: int
) -> FastAPI:
    """Return the admin application.

    Args:
        pipeline: Decides for explanations, without forwarding.
        view: Brings the gauges up to date before a scrape, and tells the fleet's status.
        metrics: For /metrics.
        max_body_bytes: Of a body to explain.
    """
    app = FastAPI(title="Warmroute admin", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/metrics")
    async def metrics_page() -> Response:
        view.refresh()
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/admin/openapi.json")
    async def public_api() -> dict[str, Any]:
        return openapi.document()

    @app.get("/admin/status")
    async def fleet_status() -> dict[str, Any]:
        return view.status()

    @app.post("/admin/explain")
    async def explain(request: Request, path: str = "/v1/chat/completions") -> Response:
        """Answer where a request would go now, and why. Nothing is forwarded or booked.

        The body and the headers are those of the request, `path` is the one it would come in on.
        """
        body = await request.body()
        if len(body) > max_body_bytes:
            return Response(status_code=413)
        try:
            return Response(
                await _explain(pipeline, request, path, body), 200, None, "application/json"
            )
        except GatewayError as error:
            return Response(error.body(), error.status, None, "application/json")

    return app


async def _explain(pipeline: Pipeline, request: Request, path: str, body: bytes) -> bytes:
    endpoint = find(path)
    if endpoint is None or endpoint.kind is None:
        raise PathNotFound("`path` must be a path whose requests are routed.")
    headers = request.headers.raw
    asking = ClientRequest("POST", path, path.encode(), headers, body, "http", "explain")
    record = RequestRecord("explain", path, pipeline.now())
    asking, read = pipeline.isolate(asking, pipeline.read(asking, endpoint.kind))
    asked = await pipeline.ask(asking, read, record)
    return explanation(asked, pipeline.placer.decide(asked))


def explanation(asked: Asked, decision: Decision) -> bytes:
    """Return a decision as JSON, with every candidate's terms, best first."""
    told = {
        "model": asked.model.key,
        "replica": decision.replica,
        "policy": {"name": asked.route.name, "kind": decision.policy},
        "rung": decision.rung,
        "reason": decision.reason,
        "load_cap": decision.load_cap,
        "num_prompt_tokens": asked.prompt.num_tokens,
        "problem": asked.prompt.problem,
        "candidates": [_candidate(ranked) for ranked in decision.ranked],
    }
    return json.dumps(told, indent=2).encode()


def _candidate(ranked: RankedCandidate) -> dict[str, Any]:
    load, match = ranked.candidate.load, ranked.candidate.match
    return {
        "replica": ranked.candidate.replica,
        "score": ranked.score,
        "terms": {term.name: term.value for term in ranked.terms},
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
