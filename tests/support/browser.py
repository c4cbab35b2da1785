"""Pages of another origin, and a Chromium that opens them."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass, field

from tests.support.replicas import WAIT_S, Received

# A first start on a busy machine; after that it takes half a second.
START_DEADLINE_S = 40.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",  # as root, as in CI, Chromium has no other way
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    # Otherwise it calls its maker's hosts at every start.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# `tell` reports to the test through the page's own origin, where CORS has no say.
PAGE = """<!doctype html><title>test</title><script type="module">
const tell = (what) => fetch("/told", {method: "POST", body: JSON.stringify(what)});
try {
%s
} catch (error) {
  await tell({error: error.name + ": " + error.message});
}
</script>"""


@dataclass
class Page:
    """One page, served from an origin of its own; `told` is what its script reports."""

    script: str
    told: asyncio.Queue = field(default_factory=asyncio.Queue)
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task] = field(default_factory=set)

    async def start(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def stop(self):
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.server.wait_closed()

    async def next(self):
        """Return what the script tells next."""
        async with asyncio.timeout(START_DEADLINE_S):
            return await self.told.get()

    async def _serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            request = Received((await reader.readuntil(b"\r\n\r\n"))[:-4], b"")
            length = int(request.header(b"content-length") or 0)
            body = await reader.readexactly(length)
            if request.line.startswith(b"POST"):
                self.told.put_nowait(json.loads(body))
                answer = b""
            else:
                answer = (PAGE % self.script).encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n"
            writer.write(head + b"content-length: %d\r\n\r\n" % len(answer) + answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # Chromium opens connections that it may not need
        finally:
            self.tasks.discard(asyncio.current_task())
            writer.close()


@contextlib.asynccontextmanager
async def chromium(url: str):
    """Show a page, without a window, until the block ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(CHROMIUM, *FLAGS, f"--user-data-dir={profile}", url),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a group of its own, so that all of it can be ended
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            async with asyncio.timeout(WAIT_S):
                await process.wait()
