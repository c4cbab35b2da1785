"""Starts what is measured: two mock replicas, and gateways in front of them."""

import http.client
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from loadtests.bench.native import Programs
from loadtests.bench.peers import SGLANG_ROUTER, VLLM_ROUTER, Peer, PeerMissing
from loadtests.bench.scenarios import BODIES, PATH
from loadtests.children import Child, ChildError, Children, wait_until
from loadtests.demo.fleet import TOKENIZER
from loadtests.programs import free_ports, gateway_argv

CONFIG: Final = Path(__file__).with_name("config")
BASELINE: Final = "vllm-router round_robin"
OURS: Final = "warmroute round_robin"
_NUM_MOCKS: Final = 2
_MOCK_DEADLINE_S: Final = 5.0
# Rust routers are up in one second; ours loads a tokenizer.
_READY_DEADLINE_S: Final = 40.0
_TRY_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A gateway that can be measured: one of our configurations, or a peer."""

    name: str
    config: Path | None = None
    peer: Peer | None = None


KINDS: Final = (
    Kind(BASELINE, peer=VLLM_ROUTER),
    Kind("sglang-router cache_aware", peer=SGLANG_ROUTER),
    Kind(OURS, config=CONFIG / "round_robin.yaml"),
    Kind("warmroute expected_ttft", config=CONFIG / "expected_ttft.yaml"),
)


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that answers."""

    name: str
    child: Child
    port: int


def environment(mock_urls: Sequence[str]) -> Mapping[str, str]:
    """Return the environment of all children; our configurations name the mocks through it."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **{f"MOCK_{number}": url for number, url in enumerate(mock_urls)},
        "TOKENIZER": str(TOKENIZER),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }


def start_mocks(children: Children, programs: Programs) -> list[str]:
    """Start the mock replicas and return their URLs.

    Raises:
        ChildError: One did not start.
    """
    mocks = [children.start(f"mock-{n}", [str(programs.mock)]) for n in range(_NUM_MOCKS)]
    return [mock.wait_ready(_MOCK_DEADLINE_S)["url"] for mock in mocks]


def start(kind: Kind, children: Children, mock_urls: Sequence[str], peers: Path) -> Running:
    """Start a gateway and wait until it answers a chat.

    Args:
        kind: Which.
        children: Ends it.
        mock_urls: Its replicas.
        peers: Where peers are installed.

    Raises:
        PeerMissing: The peer cannot be installed, or does not serve.
        ChildError: Ours does not serve.
    """
    slug = kind.name.replace(" ", "-")
    if kind.peer is None:
        child = children.start(slug, gateway_argv(kind.config or CONFIG))
        port = port_of(child.wait_ready()["url"])
        wait_answering(child, port)
        return Running(kind.name, child, port)
    command = kind.peer.install(peers)
    port, metrics_port = free_ports(2)
    child = children.start(slug, kind.peer.argv(command, port, metrics_port, mock_urls))
    try:
        wait_answering(child, port)
    except ChildError as error:
        raise PeerMissing(f"does not serve: {error}") from None
    return Running(kind.name, child, port)


def port_of(url: str) -> int:
    """Return the port of a URL that a child printed."""
    return urlsplit(url).port or 0


def wait_answering(child: Child, port: int) -> None:
    """Wait until a chat is answered with 200.

    Raises:
        ChildError: It is not, within a deadline, or the process ended.
    """
    body = (BODIES / "short.json").read_bytes()
    answered = wait_until(
        lambda: _answers(port, body) or child.exit_code is not None, _READY_DEADLINE_S
    )
    if child.exit_code is not None:
        raise ChildError(f"{child.name} ended with code {child.exit_code}; see {child.log}")
    if not answered:
        raise ChildError(f"{child.name} answered no chat within {_READY_DEADLINE_S:g} s")


def _answers(port: int, body: bytes) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TRY_TIMEOUT_S)
    try:
        connection.request("POST", PATH, body, {"content-type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
