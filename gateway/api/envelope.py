"""Errors of both listeners' FastAPI applications in OpenAI's shape, as of everything else."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError, InvalidRequest, MethodNotAllowed, PathNotFound


def shape_errors(app: FastAPI) -> None:
    """Answer unknown paths, wrong methods, invalid fields and our own errors in one shape."""

    @app.exception_handler(HTTPException)
    async def unrouted(_: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "GET")
            return answer(MethodNotAllowed(f"This path takes {allowed} only.", allowed))
        return answer(PathNotFound("This path does not exist."))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        # A body that is not JSON, or not said to be, has no field that could be wrong.
        if not field or first["type"] == "json_invalid":
            message = "The body must be a JSON object, sent as `content-type: application/json`."
            return answer(InvalidRequest(message))
        return answer(InvalidRequest(f"`{field}`: {first['msg']}.", param=field))

    @app.exception_handler(GatewayError)
    async def ours(_: Request, error: GatewayError) -> Response:
        return answer(error)


def answer(error: GatewayError) -> Response:
    """Return the answer that an error makes."""
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), error.status, headers, "application/json")
