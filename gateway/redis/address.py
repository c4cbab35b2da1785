"""Where Redis is, as one URL says it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from urllib.parse import unquote

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
_MAX_PORT = 65535


class Kind(StrEnum):
    """How the servers behind an address are arranged."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server's address.

    Attributes:
        host: Name or address; the path of a Unix socket where `port` is 0.
    """

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says. Its user and password are kept apart, and never shown.

    Attributes:
        endpoints: The server; of a cluster some of its nodes; of Sentinel the sentinels.
        master: Sentinel's name of the primary.
        database: Number of the logical database; 0 in a cluster.
    """

    kind: Kind
    endpoints: tuple[Endpoint, ...]
    tls: bool = False
    master: str = ""
    database: int = 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are. `repr` shows nothing of it.

    Attributes:
        username: Empty for the default user.
        password: Empty for none.
    """

    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return "Credentials(...)"


_SCHEMES: Mapping[str, tuple[Kind, bool]] = MappingProxyType(
    {
        "redis": (Kind.SINGLE, False),
        "rediss": (Kind.SINGLE, True),
        "redis+sentinel": (Kind.SENTINEL, False),
        "rediss+sentinel": (Kind.SENTINEL, True),
        "redis+cluster": (Kind.CLUSTER, False),
        "rediss+cluster": (Kind.CLUSTER, True),
    }
)


def parse_url(url: str) -> tuple[Address, Credentials]:
    """Return what a URL says.

    Args:
        url: `redis://HOST[:PORT][/DB]`, `unix:///PATH[?db=DB]`,
            `redis+sentinel://H1[:P1],H2[:P2]/MASTER[/DB]` or `redis+cluster://H1[:P1],H2[:P2]`,
            each with `USER:PASSWORD@` before the hosts where needed, and `rediss` for TLS.

    Raises:
        ValueError: It is not of that form; the message says what would be, and nothing of the URL.
    """
    scheme, separator, rest = url.partition("://")
    userinfo, at, place = rest.rpartition("@")
    credentials = _credentials(userinfo) if at else Credentials()
    if scheme == "unix" and separator:
        return _unix(place), credentials
    if scheme not in _SCHEMES or not separator:
        raise ValueError(f"must begin with one of {', '.join(_SCHEMES)} or unix, and ://")
    kind, tls = _SCHEMES[scheme]
    hosts, _, path = place.partition("/")
    port = DEFAULT_SENTINEL_PORT if kind is Kind.SENTINEL else DEFAULT_PORT
    endpoints = tuple(_endpoint(host, port) for host in hosts.split(","))
    if kind is Kind.SINGLE and len(endpoints) > 1:
        raise ValueError("must name one host; several are for redis+sentinel or redis+cluster")
    parts = [part for part in path.split("/") if part]
    master = ""
    if kind is Kind.SENTINEL:
        if not parts:
            raise ValueError("must name the primary after the hosts: redis+sentinel://HOST/MASTER")
        master = unquote(parts.pop(0))
    if kind is Kind.CLUSTER and parts:
        raise ValueError("must end after the hosts: a cluster has one database only")
    return Address(kind, endpoints, tls, master, _database(parts)), credentials


def _credentials(userinfo: str) -> Credentials:
    username, _, password = userinfo.partition(":")
    return Credentials(unquote(username), unquote(password))


def _unix(place: str) -> Address:
    path, _, query = place.partition("?")
    if not path.startswith("/"):
        raise ValueError("must be unix:///PATH with the socket's absolute path")
    if query and not query.startswith("db="):
        raise ValueError("must be unix:///PATH?db=N, nothing else may follow the path")
    database = _database([query.removeprefix("db=")] if query else [])
    return Address(Kind.SINGLE, (Endpoint(unquote(path), 0),), database=database)


def _endpoint(text: str, default_port: int) -> Endpoint:
    match = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?", text)
    if match is None:
        raise ValueError("must have HOST or HOST:PORT after ://, separated by commas")
    port = int(match[2]) if match[2] else default_port
    if not 0 < port <= _MAX_PORT:
        raise ValueError("must have ports from 1 to 65535")
    return Endpoint(match[1].strip("[]"), port)


def _database(parts: list[str]) -> int:
    if not parts:
        return 0
    if len(parts) > 1 or not re.fullmatch(r"[0-9]{1,4}", parts[0]):
        raise ValueError("must end with the number of the database, such as /0")
    return int(parts[0])
