"""The worker processes, as their supervisor sees them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx

from gateway.config.differences import restart_values
from gateway.config.errors import ConfigError
from gateway.config.load import load_config
from gateway.observability.logging import EventLog
from gateway.workers.kept import Kept, Launched, State, start
from gateway.workers.post import Post

# For an answer from memory by an event loop that may be busy for a moment.
ANSWER_S = 5.0
# A drain may be waited for as long as its own limit says, an hour; then the worker answers.
_LONGEST_ANSWER_S = 3700.0


class Worker(Kept):
    """One worker process.

    Args:
        post: What it is told at its first start.
        log: Gets one line an end.
        served: Called when a run serves.
        ended: Called when a run ended by itself: the worker and its exit code.
    """

    def __init__(
        self,
        post: Post,
        log: EventLog,
        served: Callable[[], None],
        ended: Callable[[Worker, int], None],
    ) -> None:
        super().__init__(f"worker {post.number}", log)
        self._post = post
        self._tell_served, self._tell_ended = served, ended
        # A connection an ask: the one before may have been to a process that is no more.
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=post.admin_path),
            base_url="http://worker",
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self._client.headers.clear()  # what is asked is passed on as it came

    @property
    def number(self) -> int:
        """From 0."""
        return self._post.number

    @property
    def takes_connections(self) -> bool:
        """Whether clients may reach it, also while it starts."""
        return self.state is State.SERVING or (self.state is State.STARTING and not self.restarts)

    async def launch(self) -> Launched:
        """Start the process, and tell it its post."""
        if self.restarts:
            await self._reread()
        read_fd, write_fd = os.pipe()
        try:
            post = replace(self._post, late=self.restarts > 0, started_fd=write_fd)
            process = await start(
                sys.executable,
                "-m",
                "gateway.workers.worker",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(write_fd,),
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        if process.stdin is not None:
            process.stdin.write(post.packed())
            process.stdin.close()
        return Launched(process, _byte_of(read_fd))

    async def answers(self) -> bool:
        """Return whether its event loop turns."""
        answer = await self.ask("GET", "/livez")
        return answer is not None and answer.is_success

    def serves(self) -> None:
        """Take notice that it serves."""
        if self._post.file is not None:
            self.signal(signal.SIGHUP)  # the file may have changed since the process began to start
        self._tell_served()

    def ended(self, code: int, *, served: bool) -> None:  # noqa: ARG002 - has_served tells more
        """Take notice that it ended by itself."""
        self._tell_ended(self, code)

    async def ask(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        timeout_s: float = ANSWER_S,
    ) -> httpx.Response | None:
        """Ask its admin API; None where it does not answer."""
        try:
            return await self._client.request(
                method, target, headers=list(headers), content=body, timeout=timeout_s
            )
        except httpx.HTTPError:
            return None

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.aclose()

    async def _reread(self) -> None:
        """Start with what the file says now; where it is broken, with what it said before."""
        if self._post.file is None:
            return
        try:
            config = await asyncio.to_thread(load_config, str(self._post.file), os.environ)
        except ConfigError as error:
            self._log.warning("config_refused", trigger="restart", problem=str(error))
        else:
            # As the other workers, it waits for a restart of all with what only that can change.
            running = restart_values(self._post.config, config)
            self._post = replace(self._post, config=running)


class Crew:
    """All workers of one supervisor.

    Args:
        workers: By number.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers

    @property
    def serving(self) -> list[Worker]:
        """Those that can be asked, by number."""
        return [worker for worker in self.workers if worker.state is State.SERVING]

    async def ask(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        *,
        patient: bool = False,
    ) -> list[tuple[Worker, httpx.Response]]:
        """Ask all that serve at once.

        Args:
            method: Of the request, as all below.
            target: Path and query.
            headers: In order.
            body: Whole.
            patient: Whether the answer may take as long as a drain.

        Returns:
            The answers of those that answered, by number.
        """
        timeout_s = _LONGEST_ANSWER_S if patient else ANSWER_S
        asked = self.serving
        answers = await asyncio.gather(
            *(worker.ask(method, target, headers, body, timeout_s) for worker in asked)
        )
        return [(w, answer) for w, answer in zip(asked, answers, strict=True) if answer is not None]

    def report(self) -> list[dict[str, Any]]:
        """Return how the workers are, for people."""
        return [{"worker": worker.number, **worker.report()} for worker in self.workers]


async def _byte_of(read_fd: int) -> None:
    """Return when a byte came; wait for ever where the writer ended without one."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe = os.fdopen(read_fd, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        if not await reader.read(1):
            await asyncio.Event().wait()  # whoever waits hears of the end from the process itself
    finally:
        transport.close()
