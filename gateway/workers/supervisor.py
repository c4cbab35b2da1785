"""The supervisor of `warmroute serve --workers N`: keeps the processes, and speaks for them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gateway.api.keyfile import load_all_keys
from gateway.certificates import Certificates
from gateway.config.models import GatewayConfig
from gateway.exits import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from gateway.http import ConnectionLimits
from gateway.observability.catalog import rules
from gateway.observability.logging import EventLog
from gateway.observability.summing import Sum
from gateway.observability.worker_metrics import WorkerMetrics
from gateway.proxy.tls import TlsError
from gateway.server import DrainTimes, ListenError, Server, bind, reserve, url_of
from gateway.workers.admin import CrewAdmin
from gateway.workers.crew import Crew, Worker
from gateway.workers.embedded import EmbeddedServer, NoServer, find_program
from gateway.workers.folder import private_folder
from gateway.workers.kept import State
from gateway.workers.post import Post

# Starts that may fail before any worker served once. What is wrong in the configuration shows with
# the first; a third one in a row is no accident.
MAX_FAILED_STARTS = 3
# Of the admin listener: operators and a scraper.
_ADMIN_CONNECTIONS = 256
_ADMIN_DRAIN = DrainTimes(0.0, 1.0)
# The first lets requests end, the second ends them, and who still runs then is stuck.
_SIGNALS_TO_KILL = 2
# How a worker may end when it is told to: by itself, or before it could listen to signals.
_CLEAN_ENDS = frozenset({0, None, -signal.SIGTERM})


def supervise(config: GatewayConfig, log: EventLog, file: Path | None, num_workers: int) -> int:
    """Serve by several workers until a signal says stop.

    Args:
        config: Validated.
        log: Where events go.
        file: Where the configuration came from; None where it has no file.
        num_workers: At least 2.

    Returns:
        The exit code, as a single gateway's.

    Raises:
        ConfigError: The key file cannot be used.
    """
    try:
        # What is broken shows here, once, and not in each worker.
        Certificates().load(config)
        load_all_keys(config.auth, os.environ)
        return asyncio.run(Supervisor(config, log, file, num_workers).run())
    except (ListenError, TlsError, NoServer) as error:
        sys.stderr.write(f"warmroute: {error}\n")
        return EXIT_FAILED


class Supervisor:
    """Keeps the workers, and the server that they share where none is configured.

    Args:
        config: Validated.
        log: Where events go.
        file: Where the configuration came from; None where it has no file.
        num_workers: At least 2.
    """

    def __init__(
        self, config: GatewayConfig, log: EventLog, file: Path | None, num_workers: int
    ) -> None:
        self._config, self._log, self._file = config, log, file
        self._num = num_workers
        self._total = Sum(rules())
        self._metrics = WorkerMetrics()
        self._crew = Crew(())
        self._server: EmbeddedServer | None = None
        self._stopping = asyncio.Event()
        self._num_signals = 0
        self._num_failed_starts = 0
        self._gave_up: int | None = None
        self._told_ready = False
        self._urls: dict[str, str] = {}

    async def run(self) -> int:
        """Serve until a signal says stop.

        Returns:
            The exit code: 0, or what a worker's failure to start says.

        Raises:
            ListenError: An address cannot be bound.
            NoServer: The workers need a server to share, and there is none that starts.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        async with AsyncExitStack() as stack:
            await self._start(stack)
            await asyncio.gather(*(worker.run() for worker in self._crew.workers))
            self._stopping.set()  # nothing is left to keep
        self._log.info("stopped")
        if self._gave_up is not None:
            return self._gave_up
        clean = all(worker.exit_code in _CLEAN_ENDS for worker in self._crew.workers)
        return EXIT_OK if clean else EXIT_FAILED

    async def _start(self, stack: AsyncExitStack) -> None:
        """Open the listeners, start the shared server, and make the workers."""
        config = self._config
        program = find_program() if config.index.backend == "memory" else None
        folder = stack.enter_context(private_folder())
        public = reserve(config.listen.host, config.listen.port)
        stack.callback(public.close)
        admin = bind(config.admin.host, config.admin.port)
        scheme = "https" if config.listen.tls else "http"
        self._urls = {"url": url_of(public, scheme), "admin_url": url_of(admin)}
        if program is not None:
            count = self._metrics.server_restarts.inc
            max_blocks = config.index.max_blocks
            self._server = EmbeddedServer(program, folder, max_blocks, self._log, count)
        self._crew = Crew([self._worker(number, public, folder) for number in range(self._num)])
        for worker in self._crew.workers:
            stack.push_async_callback(worker.close)
        stack.push_async_callback(self._serve_admin(admin))
        if self._server is not None:
            stack.push_async_callback(_end, self._server, asyncio.create_task(self._server.run()))
            await self._first_life(self._server)

    def _worker(self, number: int, public: socket.socket, folder: Path) -> Worker:
        post = Post(
            number=number,
            supervisor=os.getpid(),
            config=self._config,
            file=self._file,
            family=public.family,
            address=public.getsockname(),
            admin_path=str(folder / f"worker-{number}.sock"),
            index_url=self._server.url if self._server is not None else None,
        )
        return Worker(post, self._log, self._served, self._ended)

    def _serve_admin(self, bound: socket.socket) -> Callable[[], Awaitable[None]]:
        """Serve the admin listener; return what ends it."""
        limits, times = self._config.limits, self._config.timeouts
        server = Server(
            ConnectionLimits(_ADMIN_CONNECTIONS, limits.max_header_bytes, times.receive_s),
            _ADMIN_DRAIN,
        )
        admin = CrewAdmin(
            self._crew,
            self._total,
            self._own_page,
            self._own_status,
            self._stopping.is_set,
            limits.max_body_bytes,
        )
        server.give(admin)
        serving = asyncio.create_task(server.serve(sockets=[bound]), name="admin listener")

        async def end() -> None:
            server.stop()
            await serving

        return end

    async def _first_life(self, server: EmbeddedServer) -> None:
        """Wait until the shared server serves, or the supervisor is told to stop."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            waiting: set[asyncio.Future[Any]] = {server.first_life, stopping}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if server.first_life.done():
                server.first_life.result()
        finally:
            stopping.cancel()

    def _stop(self) -> None:
        """Let running requests end; a second signal ends them at once, a third everything."""
        self._num_signals += 1
        if self._num_signals == 1:
            self._log.info("stopping", drain_s=self._config.timeouts.drain_s)
        self._stopping.set()
        for worker in self._crew.workers:
            worker.stop()
            if self._num_signals > _SIGNALS_TO_KILL:
                worker.signal(signal.SIGKILL)

    def _reload(self) -> None:
        for worker in self._crew.workers:
            worker.signal(signal.SIGHUP)

    def _served(self) -> None:
        if not self._told_ready and all(worker.has_served for worker in self._crew.workers):
            self._told_ready = True
            self._log.info("ready", **self._urls, workers=self._num)

    def _ended(self, worker: Worker, code: int) -> None:
        self._total.gone(worker.pid)
        self._metrics.restarts.inc()
        if any(one.has_served for one in self._crew.workers) or self._stopping.is_set():
            return
        self._num_failed_starts += 1
        if code == EXIT_USAGE or self._num_failed_starts >= MAX_FAILED_STARTS:
            self._gave_up = code if code > 0 else EXIT_FAILED
            self._log.error("gave_up", exit_code=self._gave_up, starts=self._num_failed_starts)
            self._stopping.set()
            for one in self._crew.workers:
                one.stop()

    def _own_page(self) -> bytes:
        states = [worker.state for worker in self._crew.workers]
        for state in State:
            self._metrics.workers.labels(state).set(states.count(state))
        return self._metrics.page()

    def _own_status(self) -> dict[str, Any]:
        told: dict[str, Any] = {"workers": self._crew.report()}
        return told if self._server is None else {**told, "shared_server": self._server.report()}


async def _end(server: EmbeddedServer, running: asyncio.Task[None]) -> None:
    server.stop()
    await running
