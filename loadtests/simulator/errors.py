"""Errors in the shapes that vLLM 0.32 gives them.

Source:
    tests/data/vllm-0.32/err_*.http.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

ModelT = TypeVar("ModelT", bound=BaseModel)


class ApiError(Exception):
    """An answer that is not a 2xx: its status and the body's four fields."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """Return the JSON that a client gets."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        return msgspec.json.encode({"error": error})


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A request that is well-formed and cannot be served."""
    return ApiError(400, "BadRequestError", message, param)


def unknown_model(model: str, served: str) -> ApiError:
    """A model name that this server does not serve."""
    message = f"The model `{model}` does not exist. Valid aliases: {served}."
    return ApiError(404, "NotFoundError", message, "model")


def prompt_too_long(max_model_len: int) -> ApiError:
    """A prompt that leaves no room for a single output token."""
    # vLLM stops counting at one token too many.
    at_least = max_model_len + 1
    return bad_request(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
        f"contains at least {at_least} input tokens, which exceeds this limit even without any "
        "output tokens. Please reduce the length of the input prompt. "
        f"(parameter=input_tokens, value={at_least})",
        "input_tokens",
    )


def too_many_tokens(max_model_len: int, max_tokens: int) -> ApiError:
    """A prompt that leaves less room than the output tokens asked for."""
    at_least = max_model_len - max_tokens + 1
    return bad_request(
        f"This model's maximum context length is {max_model_len} tokens. However, you requested "
        f"{max_tokens} output tokens and your prompt contains at least {at_least} input tokens, "
        f"for a total of at least {max_model_len + 1} tokens. Please reduce the length of the "
        "input prompt or the number of requested output tokens. "
        f"(parameter=input_tokens, value={at_least})",
        "input_tokens",
    )


def parse_json(body: bytes) -> Any:
    """Decode a request body.

    Raises:
        ApiError: 400, with the message of Python's json, as FastAPI words it.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        pass
    try:
        # Slower and more tolerant (NaN, lone surrogates), and the source of vLLM's messages.
        return json.loads(body)
    except json.JSONDecodeError as error:
        detail = {
            "type": "json_invalid",
            "loc": f"body.{error.pos}",
            "msg": "JSON decode error",
            "input": "<dict of 0 items>",
            "ctx": {"error": error.msg},
        }
        raise _validation_error([detail]) from None
    except UnicodeDecodeError:
        raise bad_request("There was an error parsing the body") from None


def parse_body(model: type[ModelT], data: Any) -> ModelT:
    """Validate decoded JSON.

    Raises:
        ApiError: 400, listing what pydantic found, as vLLM prints it.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    raise _validation_error([_summarise(detail) for detail in details])


def _summarise(detail: ErrorDetails) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "type": detail["type"],
        "loc": ".".join(["body", *map(str, detail["loc"])]),
        "msg": detail["msg"],
        "input": _summarise_input(detail["input"]),
    }
    if "ctx" in detail:
        shown["ctx"] = detail["ctx"]
    return shown


def _summarise_input(value: Any) -> Any:
    # vLLM does not print what may be a whole prompt.
    if isinstance(value, Mapping):
        return f"<dict of {len(value)} items>"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"<list of {len(value)} items>"
    return value


def _validation_error(details: list[dict[str, Any]]) -> ApiError:
    plural = "" if len(details) == 1 else "s"
    lines = "".join(f"\n  {detail}" for detail in details)
    message = f"{len(details)} validation error{plural}:{lines}"
    return ApiError(400, "Bad Request", message, details[0]["loc"])
