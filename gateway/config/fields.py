"""What all configuration sections share: the base class and the checked kinds of text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

T = TypeVar("T")

REFUSED = "refused"
"""Type of the errors that our own checks raise; their text is ready for the reader."""

DEFAULT_LISTEN = ("0.0.0.0", 8080)
"""Host and port of the public listener."""

DEFAULT_ADMIN = ("127.0.0.1", 9090)
"""Host and port of the admin listener."""

_DEFAULT_PORTS: Mapping[str, int] = MappingProxyType({"http": 80, "https": 443})
_MAX_PORT = 65535
# A thousandth of the others' work is one request now and then; beyond that it is a mistake.
MIN_WEIGHT = 0.001
MAX_WEIGHT = 1000.0


class Section(BaseModel):
    """A mapping of the file: immutable, nothing unknown, nothing converted behind one's back."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # an input may be a secret in the wrong place
    )


# A YAML list, kept as a tuple because a frozen section must not have parts that change. Strict
# mode would refuse the list itself, so only this layer is lax; its items stay strict.
ListOf = Annotated[tuple[T, ...], Field(strict=False)]


def refused(text: str) -> PydanticCustomError:
    """Return the error of a failed check; `text` says what would be right."""
    return PydanticCustomError(REFUSED, "{text}", {"text": text})


def _check_name(text: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", text):
        raise refused("must be visible ASCII characters, not empty and without outer spaces")
    return text


def _check_label(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:\[\]-]{1,128}", text):
        raise refused("must be 1 to 128 of the characters A-Z a-z 0-9 . _ : [ ] -")
    return text


def _check_host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:-]+", text):
        raise refused("must be a host name or an address to bind to, such as 0.0.0.0 or ::1")
    return text


def _check_header(text: str) -> str:
    # RFC 9110: a field name is a token. Names are compared in lower case.
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", text):
        raise refused("must be an HTTP header name such as x-session-id")
    return text.lower()


def _check_path(text: str) -> str:
    if not re.fullmatch(r"/[\x21\x22\x24-\x3e\x40-\x7e]*", text):
        raise refused("must be a request path such as /v1/completions, without ? or #")
    return text


def _check_zmq(text: str) -> str:
    if not re.fullmatch(r"tcp://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}", text):
        raise refused("must be tcp://HOST:PORT, with a host that the gateway can reach")
    if int(text.rpartition(":")[2]) > _MAX_PORT:
        raise refused("must be tcp://HOST:PORT with a port up to 65535")
    return text


def _check_key(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\x21-\x7e]+", secret.get_secret_value()):
        raise refused(
            "must be visible ASCII characters without spaces or line ends, as headers carry it"
        )
    return secret


def normal_url(text: str) -> str:
    """Return the one spelling of a replica's address: lower case, no default port, no slash.

    Args:
        text: `http://HOST[:PORT]` or `https://HOST[:PORT]`; one trailing slash is dropped.

    Raises:
        PydanticCustomError: It is not of that form.
    """
    host, port, scheme = _url_parts(text)
    shown_port = "" if port == _DEFAULT_PORTS[scheme] else f":{port}"
    return f"{scheme}://{host}{shown_port}"


def host_and_port(url: str) -> str:
    """Return `host:port` of a replica's address, with the port that its scheme implies.

    Raises:
        PydanticCustomError: `url` is not a replica's address; see `normal_url`.
    """
    host, port, _ = _url_parts(url)
    return f"{host}:{port}"


def _url_parts(text: str) -> tuple[str, int, str]:
    # The pattern comes first: urlsplit drops tabs and line ends without a word.
    shape = r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?"
    match = re.fullmatch(shape, text, re.IGNORECASE)
    if match is None:
        raise refused(_url_cure(text))
    scheme, host = match[1].lower(), match[2].lower()
    port = int(match[3][1:]) if match[3] else _DEFAULT_PORTS[scheme]
    if not 0 < port <= _MAX_PORT:
        raise refused("must have a port from 1 to 65535")
    return host, port, scheme


def _url_cure(text: str) -> str:
    if "@" in text:
        return "must not hold a user name or password, use the model's api_key"
    try:
        parts = urlsplit(text)
    except ValueError:  # brackets that do not close
        return "must be http://HOST:PORT or https://HOST:PORT"
    if parts.scheme in _DEFAULT_PORTS and parts.netloc and (parts.path or parts.query):
        return "must end after the port, paths are added by the gateway"
    return "must be http://HOST:PORT or https://HOST:PORT"


def check_weight(weight: float) -> float:
    """Return a replica's weight.

    Raises:
        PydanticCustomError: It is out of bounds.
    """
    if weight == 0:
        raise refused("must be above 0, cordon a replica that shall get no requests")
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise refused(f"must be from {MIN_WEIGHT} to {MAX_WEIGHT:g}")
    return weight


Name = Annotated[str, AfterValidator(_check_name)]
Label = Annotated[str, AfterValidator(_check_label)]
Host = Annotated[str, AfterValidator(_check_host)]
HeaderName = Annotated[str, AfterValidator(_check_header)]
RequestPath = Annotated[str, AfterValidator(_check_path)]
ZmqEndpoint = Annotated[str, AfterValidator(_check_zmq)]
ReplicaUrl = Annotated[str, AfterValidator(normal_url)]
ApiKey = Annotated[SecretStr, AfterValidator(_check_key)]
ReplicaWeight = Annotated[float, AfterValidator(check_weight)]
Port = Annotated[int, Field(ge=0, le=_MAX_PORT)]
Seconds = Annotated[float, Field(gt=0)]
