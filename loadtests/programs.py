"""Our own programs as children: how a gateway and a simulated replica are started, and asked."""

import json
import os
import socket
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loadtests.children import Child, Children
from loadtests.measurement import ROOT

# On loopback an answer takes milliseconds; who takes seconds hangs.
_TIMEOUT_S: Final = 5.0


def environment() -> dict[str, str]:
    """Return the environment of all processes that a measurement starts."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        # Nothing here may go to the network, and many processes share the cores.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }


def gateway_argv(config: Path, *options: str) -> list[str]:
    """Return the command of a gateway."""
    return [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), *options]


def start_gateway(children: Children, name: str, config: Mapping[str, Any]) -> Child:
    """Start a gateway without waiting; its configuration stays beside its log.

    Args:
        children: Ends it.
        name: What people call it.
        config: All but the listeners, which are on loopback, at ports that are free.
    """
    path = children.folder / f"{name}.json"  # JSON is YAML
    loopback = {"host": "127.0.0.1", "port": 0}
    content = {"listen": loopback, "admin": loopback, **config}
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return children.start(name, gateway_argv(path))


def simulator_argv(**options: object) -> list[str]:
    """Return the command of a simulated replica.

    Args:
        **options: The simulator's own by their names, `_` for `-`; the port is a free one unless
            it is among them.
    """
    argv = [sys.executable, "-m", "loadtests.simulator"]
    for name, value in {"port": 0, **options}.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


def fetch(url: str, body: bytes | None = None) -> bytes:
    """Return what a child of ours answers with a status of 200.

    Args:
        url: On loopback.
        body: To be posted, JSON; None for a GET.

    Raises:
        OSError: It does not answer in time, or with an error status.
    """
    request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310 - our own child
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        content: bytes = answer.read()
    return content


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, all different: for those who cannot choose."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(bound.getsockname()[1]) for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()
