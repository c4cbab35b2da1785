"""`warmroute l2-janitor`: the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

from gateway.l2.janitor_plan import GRACE_S, LEFTOVER_S, LOW_RATIO
from gateway.l2.quantities import parse_bytes, parse_seconds, parse_share

T = TypeVar("T")

# Files of Qwen2-7B's size (14.7 MB a chunk) are freed at 7 GB/s so: more than a pool of NVMe drives
# takes in, and a load that its metadata master does not notice.
_RATE = 500.0
# A storage master that fails over answers again within half a minute.
_STALL_S = 30.0
_GIVE_UP_S = 600.0

_DESCRIPTION = """\
Delete the least recently used of LMCache's files in each PATH, so that the pool does not
fill up and fail every write. Without --delete it only says what it would do. The limits
hold for each PATH by itself. Several janitors may work on one directory.
"""
_EPILOG = """\
exit codes
  0  done, or nothing to do; a dry run that found nothing wrong
  1  a file or a directory could not be read or deleted, or the limits are still passed
  2  the command is wrong, or a PATH is not one for a janitor (the root of the file system,
     a link, no directory, or files and none of them LMCache's)
  3  the mount did not answer for --give-up (single rounds only; repeated ones go on)
"""


def add_command(commands: Any) -> None:
    """Add `l2-janitor` to a parser."""
    command: argparse.ArgumentParser = commands.add_parser(
        "l2-janitor",
        help="keep the shared cache's directory within limits",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(l2_call=_run)
    add = command.add_argument
    add("paths", metavar="PATH", nargs="+", help="a base path of LMCache's fs connector or adapter")
    add("--max-bytes", metavar="SIZE", type=_as(parse_bytes), help="of LMCache's files: 900G, 1Ti")
    add("--max-age", metavar="TIME", type=_as(parse_seconds), help="since the last use: 7d, 12h")
    add("--min-free", metavar="SHARE", type=_as(parse_share), help="of the file system: 10%%, 50Gi")
    add("--delete", action="store_true", help="delete; without it this is a dry run")
    add("--interval", metavar="TIME", type=_as(_pause), help="repeat after so long")
    add("--once", action="store_true", help="one round, also where --interval is given")
    _add_fine_points(command)


def _add_fine_points(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("fine points").add_argument
    add(
        "--low", metavar="RATIO", type=_as(_low), default=LOW_RATIO,
        help=f"go on to this ratio of a limit on bytes once it is passed (default {LOW_RATIO})",
    )  # fmt: skip
    add(
        "--grace", metavar="TIME", type=_as(parse_seconds), default=GRACE_S,
        help="never delete what was written so recently (default 10min)",
    )  # fmt: skip
    add(
        "--leftover", metavar="TIME", type=_as(parse_seconds), default=LEFTOVER_S,
        help="temporary files that nothing wrote to for so long have no writer (default 1d)",
    )  # fmt: skip
    add(
        "--folders", metavar="TIME", type=_as(parse_seconds),
        help="delete tmp-* directories that were empty for so long; has to be longer than any "
        "engine runs without storing: it cannot make its own again (default never)",
    )  # fmt: skip
    add(
        "--by", choices=("access", "write"), default="access",
        help="what counts as a use: access (atime where the mount keeps it), or only writing",
    )  # fmt: skip
    add(
        "--rate", metavar="N", type=_as(_rate), default=_RATE,
        help=f"delete at most so many chunks a second (default {_RATE:g})",
    )  # fmt: skip
    add(
        "--stall", metavar="TIME", type=_as(_pause), default=_STALL_S,
        help="say that the mount hangs when a call takes so long (default 30s)",
    )  # fmt: skip
    add(
        "--give-up", metavar="TIME", type=_as(_pause), default=_GIVE_UP_S,
        help="stop waiting for a round whose mount hangs so long (default 10min)",
    )  # fmt: skip
    add("--force", action="store_true", help="take a directory without any file of LMCache's")
    add("--json", action="store_true", help="print an object for each round")
    add("--metrics-port", metavar="PORT", type=_as(_port), help="serve Prometheus metrics there")
    add("--metrics-host", metavar="ADDRESS", default="127.0.0.1", help="and on this address")


def _run(given: argparse.Namespace, out: TextIO, err: TextIO) -> int:
    from gateway.l2 import janitor_loop  # noqa: PLC0415 - 0.1 s that other commands need not wait

    return janitor_loop.run(given, out, err)


def _as(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Let argparse show what a parser says of a wrong value."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def _pause(text: str) -> float:
    pause_s = parse_seconds(text)
    # A round that follows at once would keep the storage's metadata busy for nothing.
    if not pause_s > 0:
        raise ValueError(f"{text!r} is no time above 0")
    return pause_s


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**16:
        raise ValueError(f"{text!r} is no port: 1 to 65535, or 0 for any")
    return int(text)


def _low(text: str) -> float:
    ratio = float(text)
    if not 0 < ratio <= 1:
        raise ValueError(f"{text} is not in (0, 1]")
    return ratio


def _rate(text: str) -> float:
    rate = float(text)
    if not rate >= 1:
        raise ValueError(f"{text} is not at least 1")
    return rate
