"""Probes, on both listeners, and what they and everybody else hear while the gateway starts."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from gateway.api.asgi import ClientResponse, Receive, Scope, Send
from gateway.errors import Starting

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/ping"})
"""Probes: they need no API key, and tell nothing but yes or no."""

_JSON = ((b"content-type", b"application/json"),)


def add_probes(app: FastAPI, why_not_ready: Callable[[], str | None], *, tell_why: bool) -> None:
    """Serve /livez and /readyz.

    Args:
        app: Where.
        why_not_ready: One word, or None where the gateway is ready; asked for each probe.
        tell_why: Whether /readyz gives that word away.
    """

    @app.api_route("/livez", methods=["GET", "HEAD"])
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz() -> JSONResponse:
        return readiness_answer(why_not_ready(), tell_why=tell_why)


def readiness_answer(why_not: str | None, *, tell_why: bool = False) -> JSONResponse:
    """Return the answer to a readiness probe: 200, or 503 where there is a reason against it."""
    if why_not is None:
        return JSONResponse({"status": "ready"})
    reason = {"reason": why_not} if tell_why else {}
    return JSONResponse({"status": "not_ready", **reason}, 503)


async def starting(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - ASGI's
    """ASGI: the application of both listeners until the gateway is wired: alive, not yet ready."""
    if scope["type"] != "http":
        return
    client = ClientResponse(send)
    if scope["path"] == "/livez":
        await client.start(200, _JSON)
        await client.end(b'{"status":"alive"}')
    elif scope["path"] in OPEN_PATHS:
        await client.start(503, _JSON)
        await client.end(b'{"status":"not_ready","reason":"starting"}')
    else:
        await client.fail(Starting("The gateway is starting."))
