"""Ports of servers whose address is known before they start, or that start again at the same."""

import contextlib
import socket


def free_port() -> int:
    """Return a port of 127.0.0.1 that only who names it gets, until this process ends.

    One that is only looked up and let go may be anybody's a moment later: the kernel gives it to
    the next one who asks for any port, or who connects to somewhere. This one stays bound and
    nobody listens on it, so connections are refused. Servers set SO_REUSEADDR, as is done here, and
    so can be bound to it all the same, again and again.
    """
    held = _shareable(socket.AF_INET)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    held.detach()  # never closed: the process's end does that
    return port


def keep(family, address) -> socket.socket:
    """Hold an address without listening, until its owner comes back; see `free_port`."""
    place = _shareable(family)
    with contextlib.suppress(OSError):  # an event loop that closes later
        place.bind(address)
    return place


def _shareable(family) -> socket.socket:
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made
