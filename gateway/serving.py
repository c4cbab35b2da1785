"""Runs one gateway as a process: `warmroute serve`, and each worker of `--workers N`."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from pathlib import Path

import uvloop

from gateway.config.models import GatewayConfig
from gateway.exits import EXIT_FAILED, EXIT_OK
from gateway.observability.logging import EventLog
from gateway.proxy.tls import TlsError
from gateway.runtime import Gateway, Place
from gateway.server import ListenError

# New objects, less those that died, between two collections of the youngest ones. Requests leave no
# cycles, and a thousand that are under way hold 100,000 objects that each pass would look at; the
# interpreter's own 700 costs 3 % of a short request.
GC_NEW_OBJECTS = 50_000
# How long a thread that prepares a long prompt may keep the event loop waiting for its turn; the
# interpreter's own 5 ms are as much as such a prompt may cost another request in all.
THREAD_TURN_S = 0.1e-3


def serve(
    config: GatewayConfig, log: EventLog, file: Path | None, place: Place | None = None
) -> int:
    """Serve until a signal says stop.

    Args:
        config: Validated.
        log: Where events go.
        file: Where the configuration came from; None where it has no file.
        place: Where the gateway is one of several workers.

    Returns:
        The exit code.

    Raises:
        ConfigError: The configuration cannot be used.
    """
    gc.set_threshold(GC_NEW_OBJECTS)
    sys.setswitchinterval(THREAD_TURN_S)

    async def run() -> None:
        gateway = Gateway(config, log, file, place)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, gateway.stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gateway.reload)
        await gateway.run()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except (ListenError, TlsError) as error:
        sys.stderr.write(f"warmroute: {error}\n")
        return EXIT_FAILED
    return EXIT_OK
