"""The public paths that no replica answers: our own model list and health."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError, MethodNotAllowed, PathNotFound
from gateway.models import Models

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/ping"})
"""Probes: they need no API key, and tell nothing but yes or no."""


def build_public_app(models: Models, is_ready: Callable[[], bool]) -> FastAPI:
    """Return the application for all paths that are not routed to replicas.

    Args:
        models: For /v1/models.
        is_ready: Whether requests can be served: for /readyz, and for /ping, SageMaker's probe.
    """
    # No generated pages on the public listener: they describe more than clients may use. And no
    # redirects: a client that posts to /v1/chat/completions/ would lose its body on the way.
    app = FastAPI(
        title="Warmroute", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )

    @app.api_route("/v1/models", methods=["GET", "HEAD"])
    async def list_models() -> dict[str, object]:
        entries = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "warmroute",
                "root": name,
                "parent": served.parent,
                "max_model_len": served.max_model_len,
            }
            for name, served in models.served().items()
        ]
        return {"object": "list", "data": entries}

    @app.api_route("/livez", methods=["GET", "HEAD"])
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.api_route("/ping", methods=["GET", "POST", "HEAD"])
    @app.api_route("/health", methods=["GET", "HEAD"])
    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz() -> JSONResponse:
        ready = is_ready()
        return JSONResponse({"status": "ready" if ready else "not_ready"}, 200 if ready else 503)

    @app.exception_handler(HTTPException)
    async def in_openai_shape(_: Request, error: HTTPException) -> Response:
        shaped: GatewayError = PathNotFound("This path does not exist.")
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "GET")
            shaped = MethodNotAllowed(f"This path takes {allowed} only.", allowed)
        headers = {name.decode(): value.decode() for name, value in shaped.headers()}
        return Response(shaped.body(), shaped.status, headers, "application/json")

    return app
