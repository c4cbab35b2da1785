"""One gateway, from start to stop."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.api.keyfile import load_all_keys
from gateway.certificates import Certificates
from gateway.config.models import GatewayConfig
from gateway.listeners import Listeners, Sockets, bind_both
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics
from gateway.reload import Reloader
from gateway.wiring import Wiring

# How long a late worker leaves clients to the others, for replicas that do not answer.
LATE_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """What is given to a gateway that is one of several workers; see `gateway.workers`.

    Attributes:
        sockets: It listens there, not at the configured addresses.
        late: Whether clients' connections wait until all is built and replicas were asked.
        adapt: Makes the worker's configuration of what the file says.
        started: Called when all is built, in place of the log's `ready`.
    """

    sockets: Sockets
    late: bool
    adapt: Callable[[GatewayConfig], GatewayConfig]
    started: Callable[[], None]


class Gateway:
    """A gateway, from its configuration. Made inside the running event loop.

    Args:
        config: Validated.
        log: Where events go.
        file: Where the configuration came from, to load it again; None where it has no file.
        place: Where it is one of several workers.

    Raises:
        ConfigError: The key file cannot be used.
        TlsError: A certificate or key cannot be used.
        ListenError: One of its addresses cannot be bound.
    """

    def __init__(
        self,
        config: GatewayConfig,
        log: EventLog,
        file: Path | None = None,
        place: Place | None = None,
    ) -> None:
        self._config = config if place is None else place.adapt(config)
        self._log = log
        self._file = file
        self._place = place
        self._metrics = Metrics()
        self._reload_asked = asyncio.Event()
        # What is broken shows before anything is bound.
        self._certificates = Certificates()
        self._certificates.load(config)
        load_all_keys(config.auth, os.environ)
        sockets = bind_both(config) if place is None else place.sockets
        self._listeners = Listeners(config, sockets, late=place is not None and place.late)

    @property
    def url(self) -> str:
        """Where the public listener is reached from this machine."""
        return self._listeners.url

    @property
    def admin_url(self) -> str:
        """Where the admin listener is reached from this machine."""
        return self._listeners.admin_url

    def stop(self) -> None:
        """Let running requests end, then return from `run`; a second call ends them at once."""
        self._listeners.stop()

    def reload(self) -> None:
        """Load the configuration again, soon; the log tells what came of it."""
        self._reload_asked.set()

    async def run(self) -> None:
        """Serve until `stop`."""
        async with AsyncExitStack() as stack:
            telling = asyncio.create_task(self._tell_of_stop())
            starting = asyncio.create_task(self._start(stack), name="start")
            await self._listeners.serve()
            starting.cancel()
            await asyncio.wait({starting, telling})
            if not starting.cancelled():
                starting.result()  # what kept it from starting
        self._log.info("stopped")

    async def _start(self, stack: AsyncExitStack) -> None:
        """Build all parts behind listeners that are open, and give them what they serve by."""
        config, log, metrics = self._config, self._log, self._metrics
        try:
            wiring = Wiring(config, self._listeners, self._certificates, metrics, log, stack)
            adapt = None if self._place is None else self._place.adapt
            reloader = Reloader(self._file, config, wiring.prepare, metrics, log, adapt)
            await wiring.start(reloader)
        except BaseException:
            self._listeners.stop()
            raise
        # What start-up made stays until the end. A collector that walks it again and again
        # (transformers alone leaves half a million objects) costs a fifth of a short request.
        gc.collect()
        gc.freeze()
        if self._place is not None and self._place.late:
            await wiring.settled(LATE_PATIENCE_S)
        self._tell_ready()
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            await reloader.reload_quietly("signal")

    def _tell_ready(self) -> None:
        self._listeners.accept()
        if self._place is None:
            self._log.info("ready", url=self.url, admin_url=self.admin_url)
        else:
            self._place.started()

    async def _tell_of_stop(self) -> None:
        await self._listeners.stopping()
        self._log.info("stopping", drain_s=self._listeners.drain_s)
