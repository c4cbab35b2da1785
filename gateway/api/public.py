"""The public paths that no replica answers: our own model list and health."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from gateway.api.envelope import shape_errors
from gateway.api.probes import add_probes, readiness_answer
from gateway.models import Models


def build_public_app(
    models: Callable[[], Models], why_not_ready: Callable[[], str | None]
) -> FastAPI:
    """Return the application for all paths that are not routed to replicas.

    Args:
        models: Returns those in force, for /v1/models.
        why_not_ready: Why no requests can be served, None where they can: for /readyz, for /health
            as vLLM's clients know it, and for /ping, SageMaker's probe.
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
            for name, served in models().served().items()
        ]
        return {"object": "list", "data": entries}

    add_probes(app, why_not_ready, tell_why=False)

    @app.api_route("/ping", methods=["GET", "POST", "HEAD"])
    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> JSONResponse:
        return readiness_answer(why_not_ready())

    shape_errors(app)
    return app
