"""The admin API: metrics, explanations, the fleet's state. Not for the public listener."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request, Response

from gateway.api import openapi
from gateway.api.access import Keys
from gateway.api.admin_replicas import replica_routes
from gateway.api.asgi import read_request
from gateway.api.endpoints import find
from gateway.api.envelope import shape_errors
from gateway.api.probes import add_probes
from gateway.errors import PathNotFound
from gateway.fleet import FleetView
from gateway.observability.record import RequestRecord
from gateway.pipeline import Pipeline
from gateway.placement import Asked, Placement
from gateway.reload import Reloader
from gateway.replicas.operations import Operations
from routing.types import RankedCandidate


def build_admin_app(
    pipeline: Callable[[], Pipeline],
    keys: Keys,
    view: FleetView,
    operations: Operations,
    reloader: Reloader,
    why_not_ready: Callable[[], str | None],
) -> FastAPI:
    """Return the admin application.

    Args:
        pipeline: Returns the one in force, which decides for explanations without forwarding.
        keys: Whose requests may be explained.
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
        and `api_key` the name of its caller's key, for rules, tenants and what the key may use.
        """
        current = pipeline()
        endpoint = find(path)
        if endpoint is None:
            raise PathNotFound("`path` must be a path whose requests go to replicas.")
        caller = keys.named(api_key)
        limit = current.config.limits.max_body_bytes
        asking = await read_request(request.scope, request.receive, caller, limit)
        asking = replace(asking, method=endpoint.method, path=path, target=path.encode())
        record = RequestRecord("explain", endpoint.label, current.now())
        told = explanation(
            await current.foresee(asking, endpoint, record), current.config.retries.max_tries
        )
        return Response(told, media_type="application/json")

    @app.post("/admin/reload")
    async def reload() -> dict[str, Any]:
        """Load the configuration file again, and answer what changed.

        One that cannot be used changes nothing; the answer says what is wrong, and where.
        """
        return (await reloader.reload("operator")).report()

    add_probes(app, why_not_ready, tell_why=True)
    return app


def explanation(placement: Placement, max_tries: int) -> bytes:
    """Return as JSON where a request goes and why, with every candidate's terms, best first.

    Args:
        placement: Of the request.
        max_tries: Replicas that it is sent to at most, as long as none of them takes it.
    """
    told: dict[str, Any] = {"replica": placement.replica, "reason": _reason(placement)}
    if placement.asked is not None:
        told |= {"tries": placement.order[:max_tries], "home": placement.home}
        told |= _about_request(placement.asked)
        told |= _about_decision(placement, placement.asked)
    return json.dumps(told, indent=2).encode()


def _reason(placement: Placement) -> str:
    """Return the header `x-warmroute-reason` of its answer; `stored` for one that is asked for."""
    if placement.home is not None:
        return "session"
    return "stored" if placement.decision is None else placement.decision.reason


def _about_request(asked: Asked) -> dict[str, Any]:
    passed_over = asked.choice.passed_over
    return {
        "model": asked.choice.offer.name,
        "pool": asked.choice.model.key,
        "pools": {pool.key: pool.weight for pool in asked.choice.offer.pools},
        "passed_over": passed_over.key if passed_over is not None else None,
        "rule": asked.choice.rule,
        "num_prompt_tokens": asked.prompt.num_tokens,
        "problem": asked.prompt.problem,
    }


def _about_decision(placement: Placement, asked: Asked) -> dict[str, Any]:
    """Return what the policy says: of a session, where it would go if its home did not answer."""
    decision = placement.decision
    if decision is None:
        return {"policy": None, "rung": None, "load_cap": None, "candidates": []}
    return {
        "policy": {"name": asked.choice.route.name, "kind": decision.policy},
        "rung": decision.rung,
        "load_cap": decision.load_cap if placement.home is None else None,
        "candidates": [
            {**_candidate(ranked), "price": _price(asked, ranked)} for ranked in decision.ranked
        ],
    }


def _price(asked: Asked, ranked: RankedCandidate) -> dict[str, Any]:
    """Return what each tier serves and what is computed, with its seconds, at the prices of now.

    Differs from `matched_tokens` where loading from a tier would take longer than computing; and
    from a score that gives computing more weight, where it would not take that much longer.
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
