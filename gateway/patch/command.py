"""`warmroute patch-deployment`: the command line."""

from __future__ import annotations

import argparse
import math
from typing import Any, TextIO

from gateway.l2.seeds import MAX_SEED
from gateway.patch.settings import Settings

EXIT_OK = 0
EXIT_DRIFT = 1
EXIT_USAGE = 2

# Those whose names the gateway computes. LMCache takes any other word for `builtin`.
_ALGORITHMS = ("sha256_cbor", "sha256", "builtin")

_DESCRIPTION = """\
Write into a HyperPod InferenceEndpointConfig, a Deployment or a StatefulSet what its
replicas need to share a pool (L2) through LMCache, and to tell the gateway what they
cache: the volume, its mount, LMCache's variables, the seed, KV events, cached tokens.
Other documents of the file, comments and formatting stay as they are, and a second run
changes nothing.
"""
_EPILOG = """\
exit codes
  0  written, or nothing to do; --verify: all is as it should be
  1  --verify found a difference, or a pool that is not used
  2  the file cannot be read or patched (said where and why), or the cluster not be asked
"""


def add_command(commands: Any) -> None:
    """Add `patch-deployment` to a parser."""
    command: argparse.ArgumentParser = commands.add_parser(
        "patch-deployment",
        help="write what replicas need for a shared cache into their YAML",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(l2_call=_run)
    add = command.add_argument
    add("file", metavar="FILE", help="YAML, several documents; - for standard input")
    where = command.add_mutually_exclusive_group()
    where.add_argument("-o", metavar="OUT", dest="out", help="write there, not to standard output")
    where.add_argument("--in-place", action="store_true", help="write into FILE")
    where.add_argument("--diff", action="store_true", help="show what would change")
    where.add_argument(
        "--print", choices=("kyverno", "merge-patch"), dest="other",
        help="print the same as a Kyverno policy on pods, which survives an operator that renders "
        "its Deployment again, or as a patch for `kubectl patch --patch-file`",
    )  # fmt: skip
    where.add_argument("--verify", action="store_true", help="compare with what runs")
    _add_settings(command)
    _add_live(command)


def _add_settings(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("what to write").add_argument
    default = Settings()
    add("--pvc", metavar="NAME", default=default.claim, help="claim of the pool (%(default)s)")
    add("--mount-path", metavar="PATH", default=default.mount_path, help="(%(default)s)")
    add("--volume", metavar="NAME", default=default.volume, help="in the pod (%(default)s)")
    add("--container", metavar="NAME", help="the engine's, where it cannot be told")
    add("--name", metavar="NAME", help="only the object of this name")
    add("--chunk-tokens", metavar="N", type=int, help="LMCache's chunk (as written, or 256)")
    add("--hash", choices=_ALGORITHMS, help="of LMCache's chunks (as written, or sha256_cbor)")
    add("--seed", metavar="N", type=_seed, help="PYTHONHASHSEED (as written, or 0)")
    add("--l1-gb", metavar="GB", type=_gigabytes, help="LMCache's host memory (left as it is)")
    add("--l1-events", action="store_true", help="LMCache tells what it puts into host memory")
    add("--events-port", metavar="PORT", type=_port, default=default.events_port,
        help="of KV events, where none is written (%(default)s)")  # fmt: skip
    add("--replay-port", metavar="PORT", type=_port, default=default.replay_port,
        help="of their replay (%(default)s)")  # fmt: skip


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: 0 to {MAX_SEED}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 1 to 65535")
    return int(text)


def _gigabytes(text: str) -> float:
    size = float(text)
    if not 0 < size < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no size above 0")
    return size


def _add_live(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("what to compare with (--verify)").add_argument
    add("--live", metavar="FILE", action="append",
        help="what `kubectl get pods -o yaml` wrote, in place of the cluster")  # fmt: skip
    add("--metrics", metavar="FILE", action="append", help="with --live: a replica's /metrics")
    add("--kubeconfig", metavar="FILE", help="of the cluster; without it this pod's own account")
    add("--port", metavar="PORT", type=_port, default=8000, help="of the engines (%(default)s)")


def _run(given: argparse.Namespace, out: TextIO, err: TextIO) -> int:
    from gateway.patch import run  # noqa: PLC0415 - other commands need not wait for it

    return run.run(given, out, err)
