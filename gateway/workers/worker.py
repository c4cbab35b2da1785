"""One worker: a whole gateway on a share of the public listener. Started by the supervisor."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from gateway.config.errors import ConfigError
from gateway.exits import EXIT_FAILED, EXIT_USAGE
from gateway.listeners import Sockets
from gateway.observability.logging import EventLog, configure
from gateway.server import BACKLOG, share
from gateway.workers.post import Post, unpack
from gateway.workers.tether import end_with


def main() -> int:
    """Serve until a signal says stop.

    Returns:
        The exit code, as a single gateway's.
    """
    # A reload that is asked for while the libraries are loaded must not end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    post = unpack(sys.stdin.buffer)
    end_with(post.supervisor)
    log = configure(post.config.logging.level, {"worker": post.number})
    try:
        sockets = Sockets(share(post.family, post.address), _admin_socket(post.admin_path))
    except OSError as error:
        sys.stderr.write(f"warmroute: worker {post.number} cannot listen: {error.strerror}\n")
        return EXIT_FAILED
    try:
        return _serve(post, log, sockets)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE


def _serve(post: Post, log: EventLog, sockets: Sockets) -> int:
    from gateway.runtime import Place  # noqa: PLC0415 - seconds; the tie above must not wait
    from gateway.serving import serve  # noqa: PLC0415

    def started() -> None:
        log.info("worker_ready", pid=os.getpid())
        os.write(post.started_fd, b"!")
        os.close(post.started_fd)

    place = Place(sockets, post.late, post.adapt, started)
    return serve(post.config, log, post.file, place)


def _admin_socket(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)  # of the one before, which was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen(BACKLOG)
    return listening


if __name__ == "__main__":
    sys.exit(main())
