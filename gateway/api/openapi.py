"""Describes the public API as an OpenAPI document.

Bodies are the engine's business and are forwarded as they come, so their schemas say only what the
gateway itself reads; everything else is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.api.endpoints import ENDPOINTS, Endpoint
from gateway.prompt.body import BodyKind

OPENAPI_VERSION = "3.1.0"

_MODEL: Mapping[str, Any] = MappingProxyType(
    {"type": "string", "minLength": 1, "description": "Name of a served model."}
)
_MESSAGES: Mapping[str, Any] = MappingProxyType(
    {"type": "array", "minItems": 1, "items": {"type": "object"}}
)
_PROMPT: Mapping[str, Any] = MappingProxyType(
    {
        "description": "Text, token ids, or a list of either.",
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": ["string", "integer", "array"]}},
        ],
    }
)
# What the gateway itself may answer on any routed path, besides what replicas answer.
_ERRORS: Mapping[str, str] = MappingProxyType(
    {
        "400": "The request cannot be routed.",
        "401": "An API key is required, or is not valid.",
        "403": "The API key may not use this model.",
        "404": "No replica serves this model, or holds this response.",
        "405": "The path takes another method.",
        "408": "The request did not arrive in time.",
        "413": "The body is too large.",
        "415": "The content encoding is not supported.",
        "429": "Too many requests from this API key, or the replica's own answer.",
        "431": "The headers are too large.",
        "502": "The replica's answer was broken.",
        "503": "No replica can take the request now.",
        "504": "The replica did not answer in time.",
    }
)


def document() -> dict[str, Any]:
    """Return the OpenAPI document of the public listener."""
    paths: dict[str, Any] = {
        path: {"post": _routed(endpoint)} for path, endpoint in ENDPOINTS.items()
    }
    paths["/v1/responses/{response_id}"] = {"get": _stored("Return a stored response.")}
    paths["/v1/responses/{response_id}/cancel"] = {"post": _stored("Cancel a stored response.")}
    paths |= _own_paths()
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "Warmroute", "version": "1", "description": __doc__.splitlines()[0]},
        "paths": paths,
        "components": {
            "schemas": {"Error": _error_schema()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _routed(endpoint: Endpoint) -> dict[str, Any]:
    kind = "multipart/form-data" if endpoint.kind is BodyKind.FORM else "application/json"
    content = {kind: {"schema": _body_schema(endpoint.kind)}}
    return {
        "summary": "Answered by a replica of the model, chosen for this prompt.",
        "requestBody": {"required": True, "content": content},
        "responses": _responses("The replica's answer; a stream of events where asked for."),
    }


def _body_schema(kind: BodyKind | None) -> dict[str, Any]:
    properties: dict[str, Any] = {"model": dict(_MODEL)}
    required = ["model"]
    if kind in (BodyKind.CHAT, BodyKind.MESSAGES):
        properties["messages"] = dict(_MESSAGES)
        required.append("messages")
    if kind is BodyKind.COMPLETION:
        properties["prompt"] = dict(_PROMPT)
        required.append("prompt")
    if kind is BodyKind.FORM:
        properties["file"] = {"type": "string", "format": "binary"}
    else:
        properties["stream"] = {"type": "boolean"}
    return {"type": "object", "properties": properties, "required": required}


def _stored(summary: str) -> dict[str, Any]:
    pattern = "^[A-Za-z0-9_-]{1,128}$"
    return {
        "summary": summary,
        "parameters": [
            {
                "name": "response_id",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "pattern": pattern},
            }
        ],
        "responses": _responses("The answer of the replica that made the response."),
    }


def _own_paths() -> dict[str, Any]:
    ready = {
        "200": {"description": "Requests can be served."},
        "503": {"description": "They cannot."},
    }
    probe = {"summary": "Whether requests can be served.", "responses": ready, "security": []}
    alive = {"200": {"description": "The process runs."}}
    models = {"200": {"description": "OpenAI's list of models."}, "401": _error(_ERRORS["401"])}
    return {
        "/v1/models": {"get": {"summary": "The models that are served.", "responses": models}},
        "/livez": {"get": {"summary": "Liveness.", "responses": alive, "security": []}},
        "/readyz": {"get": probe},
        "/health": {"get": probe},
        "/ping": {"get": probe, "post": probe},
    }


def _responses(text: str) -> dict[str, Any]:
    return {"200": {"description": text}} | {s: _error(why) for s, why in _ERRORS.items()}


def _error(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _error_schema() -> dict[str, Any]:
    error = {
        "type": "object",
        "required": ["message", "type", "param", "code", "reason"],
        "properties": {
            "message": {"type": "string"},
            "type": {"type": "string"},
            "param": {"type": ["string", "null"]},
            "code": {"type": "integer"},
            "reason": {"type": "string", "description": "Machine-readable."},
        },
    }
    return {"type": "object", "required": ["error"], "properties": {"error": error}}
