"""What can go wrong with a request, and the one place that turns it into an HTTP answer.

    GatewayError                 status, reason
    +-- ClientError              the request is wrong; another try will not help
    |   +-- InvalidRequest       400
    |   +-- ModelNotFound        404
    |   +-- PathNotFound         404
    |   +-- MethodNotAllowed     405
    |   +-- PromptTooLarge       413
    |   +-- UnsupportedEncoding  415
    |   +-- HeadersTooLarge      431
    |   +-- ReceiveTimeout       408
    |   +-- Unauthorized         401
    |   +-- Forbidden            403
    |   +-- RateLimited          429 + Retry-After
    |   +-- ResponseNotFound     404
    |   +-- ConfigInvalid        400, on the admin listener
    |   +-- NoConfigFile         409, on the admin listener
    |   +-- ReplicaNotFound      404, on the admin listener
    +-- UpstreamError            a replica failed us
    |   +-- ReplicaUnreachable   502, nothing was sent
    |   |   +-- ConnectTimeout   504
    |   +-- ReplicaTimeout       504
    |   +-- StreamBroken         502, or an aborted body once it has begun
    +-- Unavailable              503 + Retry-After
        +-- NoEligibleReplica
        +-- Overloaded
        |   +-- QueueTimeout
        +-- Starting
        +-- Draining             or an error event in a stream that has begun

Raw exception text never reaches a client: every message here is ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import ClassVar


class GatewayError(Exception):
    """A request that did not get a replica's answer.

    Attributes:
        status: HTTP status.
        kind: OpenAI's error type, as vLLM spells it.
        reason: Machine-readable, bounded; also the metrics label.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "InternalServerError"
    reason: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def phrase(self) -> str:
        """HTTP's words for the status."""
        return HTTPStatus(self.status).phrase

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that the answer carries beside its content type."""
        return []

    def details(self) -> Mapping[str, object]:
        """Further fields of the answer, for machines."""
        return {}

    def body(self) -> bytes:
        """The answer in OpenAI's error shape, with our reason beside vLLM's fields."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
            "reason": self.reason,
            **self.details(),
        }
        return json.dumps({"error": error}).encode()

    def event(self, *, named: bool) -> bytes:
        """The answer as the last event of a stream, for streams whose events are named or not."""
        if not named:
            return b"data: " + self.body() + b"\n\n"
        return b'event: error\ndata: {"type": "error", ' + self.body()[1:] + b"\n\n"


class ClientError(GatewayError):
    """The request is wrong; sending it again will not help."""


class InvalidRequest(ClientError):
    """The body cannot be routed: not JSON, or a field is missing or of the wrong type."""

    status = 400
    kind = "BadRequestError"
    reason = "invalid_request"


class ModelNotFound(ClientError):
    """No configured model has this name."""

    status = 404
    kind = "NotFoundError"
    reason = "model_not_found"


class PathNotFound(ClientError):
    """Not a path of the public API."""

    status = 404
    kind = "NotFoundError"
    reason = "path_not_found"


class MethodNotAllowed(ClientError):
    """The path exists, the method does not."""

    status = 405
    kind = "BadRequestError"
    reason = "method_not_allowed"

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed

    def headers(self) -> list[tuple[bytes, bytes]]:
        """RFC 9110 wants the allowed methods named."""
        return [(b"allow", self.allowed.encode())]


class PromptTooLarge(ClientError):
    """The body is longer than the gateway takes."""

    status = 413
    kind = "BadRequestError"
    reason = "body_too_large"


class ReceiveTimeout(ClientError):
    """The client did not finish sending its request in time."""

    status = 408
    kind = "BadRequestError"
    reason = "receive_timeout"


class HeadersTooLarge(ClientError):
    """The request's headers are longer than the gateway takes."""

    status = 431
    kind = "BadRequestError"
    reason = "headers_too_large"


class UnsupportedEncoding(ClientError):
    """The body is compressed in a way that nobody here reads."""

    status = 415
    kind = "BadRequestError"
    reason = "unsupported_encoding"


class Unauthorized(ClientError):
    """No API key, or not one of ours."""

    status = 401
    kind = "AuthenticationError"
    reason = "unauthorized"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """RFC 9110 wants the scheme named."""
        return [(b"www-authenticate", b"Bearer")]


class Forbidden(ClientError):
    """The API key is ours, and may not do this."""

    status = 403
    kind = "PermissionDeniedError"
    reason = "forbidden"


class RateLimited(ClientError):
    """The API key has used up its requests for now."""

    status = 429
    kind = "RateLimitError"
    reason = "rate_limited"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> list[tuple[bytes, bytes]]:
        """When to try again, in whole seconds."""
        return [(b"retry-after", str(self.retry_after_s).encode())]


class ResponseNotFound(ClientError):
    """No replica is known to hold this stored response."""

    status = 404
    kind = "NotFoundError"
    reason = "response_not_found"


class ReplicaNotFound(ClientError):
    """An operator named a replica that is not there and was not there lately."""

    status = 404
    kind = "NotFoundError"
    reason = "replica_not_found"


class UpstreamError(GatewayError):
    """A replica failed us."""

    status = 502
    kind = "BadGatewayError"
    reason = "replica_error"


class ReplicaUnreachable(UpstreamError):
    """No connection: nothing was sent, so another replica may be tried."""

    reason = "replica_unreachable"


class ConnectTimeout(ReplicaUnreachable):
    """No connection in time: nothing was sent either."""

    status = 504
    kind = "GatewayTimeoutError"
    reason = "replica_timeout"


class ReplicaTimeout(UpstreamError):
    """Connected, but no answer in time."""

    status = 504
    kind = "GatewayTimeoutError"
    reason = "replica_timeout"


class StreamBroken(UpstreamError):
    """The replica closed the connection, or sent what is not HTTP, before its answer was whole."""

    reason = "stream_broken"


class ConfigInvalid(ClientError):
    """The configuration file cannot be used; the one before stays in force.

    Args:
        problems: One line each, with file and line.
    """

    status = 400
    kind = "BadRequestError"
    reason = "config_invalid"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("The configuration was refused, and nothing has changed.")
        self.problems = problems

    def details(self) -> Mapping[str, object]:
        """What is wrong, for the person who wrote the file."""
        return {"problems": list(self.problems)}


class NoConfigFile(ClientError):
    """There is no file to reload."""

    status = 409
    kind = "ConflictError"
    reason = "no_config_file"


class Unavailable(GatewayError):
    """Nobody can take the request now; the client may try again."""

    status = 503
    kind = "ServiceUnavailableError"
    reason = "unavailable"

    # One health interval is the soonest that the state of a replica can change.
    retry_after_s: ClassVar[int] = 1

    def headers(self) -> list[tuple[bytes, bytes]]:
        """When to try again, in whole seconds."""
        return [(b"retry-after", str(self.retry_after_s).encode())]


class NoEligibleReplica(Unavailable):
    """No replica of the model may get a request.

    Args:
        message: For people.
        replicas: How many of them are in each state; None where that is not the point.
    """

    reason = "no_eligible_replica"

    def __init__(self, message: str, replicas: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.replicas = replicas

    def details(self) -> Mapping[str, object]:
        """The states, so that a client can tell a rollout from an outage."""
        return {} if self.replicas is None else {"replicas": dict(self.replicas)}


class Overloaded(Unavailable):
    """More requests are at the replicas than allowed, and the queue is full or too slow."""

    reason = "overloaded"


class QueueTimeout(Overloaded):
    """No place at the replicas came free in time."""

    reason = "queue_timeout"


class Starting(Unavailable):
    """The gateway is not wired yet: it loads tokenizers."""

    reason = "starting"


class Draining(Unavailable):
    """The gateway stops, and its time to let requests end is over."""

    reason = "draining"
