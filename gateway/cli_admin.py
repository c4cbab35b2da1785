"""The commands that speak to a running gateway's admin API: replicas, cordon, reload and so on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from math import isfinite, nan
from typing import Any, TextIO
from urllib.parse import quote

from gateway.config.fields import DEFAULT_ADMIN
from gateway.errors import PathNotFound
from gateway.exits import EXIT_FAILED, EXIT_OK

# For an answer from memory. A drain adds what it may wait.
_TIMEOUT_S = 10.0
# Gateways tell each other something every 0.1 s: one that heard nothing for so long is cut off.
_SILENT_AFTER_S = 1.0
_COLUMNS = ("replica", "model", "state", "for", "in flight", "weight", "why")
_UNITS_S = ((86400, "d"), (3600, "h"), (60, "min"))


def add_commands(commands: Any) -> None:
    """Add the commands to a parser; each sets `admin_call` to the request that it makes.

    Args:
        commands: What `ArgumentParser.add_subparsers` returned.
    """
    replicas = commands.add_parser("replicas", help="list the replicas of a running gateway")
    replicas.set_defaults(admin_call=lambda _: ("GET", "replicas", None))
    cordon = _on_replica(commands, "cordon", "send a replica no new requests")
    drain = _on_replica(commands, "drain", "cordon a replica, and let go of its sessions")
    uncordon = _on_replica(commands, "uncordon", "end a cordon or a drain")
    weight = _on_replica(commands, "weight", "give a replica another share of the work")
    for command in (cordon, drain):
        command.add_argument("--reason", default="", help="one line for whoever looks at it next")
        command.set_defaults(admin_call=_hold)
    drain.add_argument(
        "--wait", metavar="S", type=_seconds, default=0.0, help="wait until nothing is in flight"
    )
    uncordon.set_defaults(admin_call=lambda given: ("POST", _path(given, "uncordon"), None))
    weight.add_argument("weight", metavar="W", help="a number above 0, or `configured`")
    weight.set_defaults(admin_call=_weigh)
    host, port = DEFAULT_ADMIN
    reload = commands.add_parser("reload", help="load the configuration file again")
    reload.set_defaults(admin_call=lambda _: ("POST", "reload", None))
    flush = commands.add_parser("flush", help="forget what is known of a shared pool")
    flush.add_argument("tier", choices=["l2"], help="the tier")
    flush.add_argument("--model", metavar="NAME", help="of this model only")
    flush.set_defaults(admin_call=_flush)
    for command in (replicas, cordon, drain, uncordon, weight, reload, flush):
        command.add_argument(
            "--admin", metavar="URL", default=f"http://{host}:{port}", help="admin listener"
        )
        command.add_argument("--json", action="store_true", help="print the answer as it came")


def call(given: argparse.Namespace, out: TextIO, err: TextIO) -> int:
    """Make the request of a command, and print its answer.

    Args:
        given: Parsed arguments.
        out: Gets a table, or JSON.
        err: Gets one line where something is wrong.

    Returns:
        The exit code: 1 where the gateway cannot be reached or refuses, or where a replica that
        was waited for is not drained.
    """
    told = _ask(given)
    if told is None:
        err.write(f"warmroute: no admin API answers at {given.admin}, see --admin\n")
        return EXIT_FAILED
    refused = told.get("error")
    if refused is not None:
        problems = [refused["message"], *refused.get("problems", ())]
        err.writelines(f"warmroute: {line}\n" for line in problems)
        return EXIT_FAILED
    lines = [json.dumps(told, indent=2)] if given.json else _shown(told)
    out.writelines(f"{line}\n" for line in lines)
    waited = getattr(given, "wait", 0.0) > 0
    return EXIT_FAILED if waited and not told["drained"] else EXIT_OK


def _ask(given: argparse.Namespace) -> dict[str, Any] | None:
    """Return the answer to a command's request; None where no admin API answers."""
    import httpx  # noqa: PLC0415 - 0.15 s that other commands need not wait

    method, path, body = given.admin_call(given)
    timeout_s = _TIMEOUT_S + getattr(given, "wait", 0.0)
    base = given.admin if "://" in given.admin else f"http://{given.admin}"
    url = f"{base.rstrip('/')}/admin/{path}"
    try:
        answer = httpx.request(method, url, json=body, timeout=timeout_s, trust_env=False)
        told: dict[str, Any] = answer.json()
        if answer.status_code == HTTPStatus.OK:
            return told
        # The public listener has none of these paths.
        return None if told["error"]["reason"] == PathNotFound.reason else told
    except (KeyError, TypeError, httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None


def _on_replica(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text)
    command.add_argument("id", metavar="ID", help="as `warmroute replicas` shows it")
    return command


def _path(given: argparse.Namespace, operation: str) -> str:
    return f"replicas/{quote(given.id, safe='')}/{operation}"


def _hold(given: argparse.Namespace) -> tuple[str, str, Any]:
    wait = f"?wait_s={given.wait}" if given.command == "drain" else ""
    return "POST", _path(given, given.command) + wait, {"reason": given.reason}


def _flush(given: argparse.Namespace) -> tuple[str, str, Any]:
    model = f"&model={quote(given.model, safe='')}" if given.model else ""
    return "POST", f"flush?tier={given.tier.upper()}{model}", None


def _weigh(given: argparse.Namespace) -> tuple[str, str, Any]:
    if given.weight == "configured":
        return "DELETE", _path(given, "weight"), None
    number = _number(given.weight)
    # The gateway says what is wrong with a text that is no number.
    return "PUT", _path(given, "weight"), {"weight": number if isfinite(number) else given.weight}


def _seconds(text: str) -> float:
    number = _number(text)
    if not isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text!r}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def _shown(told: Mapping[str, Any]) -> Iterator[str]:
    if "result" in told:
        yield told["result"]
        yield from told["changes"]
        yield from (f"needs a restart: {change}" for change in told["needs_restart"])
        return
    if "flushed" in told:
        yield from (f"{model}: {number} forgotten" for model, number in told["flushed"].items())
        if not told["flushed"]:
            yield "no model has a shared_cache"
        elif told["gateways"] is not None:
            yield from _others(told["gateways"])
        return
    if "replicas" not in told:
        yield from _table([_row(told)])
        return
    yield from _table([_row(replica) for replica in told["replicas"]])
    if told["absent"]:
        yield ""
        yield "not there, and remembered:"
        yield from _table([_row(replica) for replica in told["absent"]])


def _others(gateways: Mapping[str, Any]) -> Iterator[str]:
    """Say who else is told, of gateways that share a Redis."""
    if gateways["heard_s_ago"] > _SILENT_AFTER_S:
        yield "other gateways cannot be told now, and will be once Redis is back"
    elif len(gateways["live"]) > 1:
        yield f"other gateways told: {len(gateways['live']) - 1}"


def _row(replica: Mapping[str, Any]) -> Sequence[str]:
    return (
        replica["id"],
        replica.get("model", ""),
        replica["state"],
        _age(replica["for_s"]) if "for_s" in replica else "",
        str(replica["in_flight"]),
        "" if replica["weight"] is None else f"{replica['weight']:g}",
        _why(replica),
    )


def _why(replica: Mapping[str, Any]) -> str:
    hold, fault = replica.get("hold"), replica.get("fault")
    parts = [replica.get("reason", "")]
    if hold is not None:
        held = f"{hold['state']} by an operator" if replica["state"] == "gone" else "operator"
        parts = [f"{held}: {hold['reason']}" if hold["reason"] else held]
    if fault is not None and fault != replica.get("reason"):
        parts.append(f"does not answer: {fault}")
    if replica.get("drained"):
        parts.append("drained")
    return ", ".join(part for part in parts if part)


def _age(seconds: float) -> str:
    for unit_s, name in _UNITS_S:
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    return f"{seconds:.0f} s"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        cells = zip(row, widths, strict=True)
        yield "  ".join(cell.ljust(width) for cell, width in cells).rstrip()
