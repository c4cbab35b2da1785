"""More idle connections than a gateway may have: does it wait, or does it spin on accept?"""

import resource
import select
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from loadtests.usage import cpu_s, tree

_SETTLE_S: Final = 1.0
_WATCH_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Held:
    """What became of idle connections, and what they cost.

    Attributes:
        opened: Connections opened.
        open: Still open after a while: accepted, or waiting to be.
        refused_503: Answered with 503 and closed.
        closed: Closed or reset without a word.
        cpu_cores: CPU of the gateway meanwhile, in cores.
    """

    opened: int
    open: int
    refused_503: int
    closed: int
    cpu_cores: float


def idle_cores(pid: int, watch_s: float = _WATCH_S) -> float:
    """Return the CPU that a process tree uses while we do nothing, in cores."""
    pids = tree(pid)
    before, started = cpu_s(pids), time.monotonic()
    time.sleep(watch_s)
    return (cpu_s(pids) - before) / (time.monotonic() - started)


def hold(port: int, pid: int, count: int) -> Held:
    """Open `count` connections that send nothing, watch, and close them.

    Args:
        port: The gateway's public listener.
        pid: The gateway's process.
        count: More than it may have.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as stack:
        sockets = []
        for _ in range(count):
            with suppress(OSError):  # refused by the system: not the gateway's doing
                opened = socket.create_connection(("127.0.0.1", port), timeout=_SETTLE_S)
                sockets.append(stack.enter_context(opened))
        time.sleep(_SETTLE_S)
        cores = idle_cores(pid)
        answers = [_answer(opened) for opened in sockets]
    refused = sum(answer is not None and b" 503 " in answer[:16] for answer in answers)
    still_open = answers.count(None)
    return Held(len(sockets), still_open, refused, len(answers) - still_open - refused, cores)


def _answer(opened: socket.socket) -> bytes | None:
    """Return what the gateway said before it closed a connection; None where it is still open."""
    poll = select.poll()
    poll.register(opened, select.POLLIN)
    if not poll.poll(0):
        return None
    try:
        return opened.recv(4096)
    except OSError:
        return b""
