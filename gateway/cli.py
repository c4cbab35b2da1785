"""The command `warmroute`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from gateway import cli_admin, cli_l2
from gateway.config.check import check_file
from gateway.config.errors import ConfigError
from gateway.config.load import config_from_flags, load_config
from gateway.config.models import GatewayConfig
from gateway.exits import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from routing.policies import POLICIES

# More than the cores of any host that this is for; a typing error must not start 1,000 processes.
MAX_WORKERS = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Without the program's name; None for the process's own.

    Returns:
        The exit code.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.command == "serve":
            return _serve(given)
        if given.command == "check":
            return _check(given)
        if "admin_call" in given:
            return cli_admin.call(given, sys.stdout, sys.stderr)
        if "l2_call" in given:
            return cli_l2.call(given, sys.stdout, sys.stderr)
        print(f"warmroute {version('warmroute')}")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmroute", description="A prefix-cache-aware gateway for fleets of vLLM replicas."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run the gateway")
    serve.add_argument("file", metavar="FILE", nargs="?", help="configuration, YAML")
    serve.add_argument("--config", metavar="FILE", help="the same")
    serve.add_argument(
        "--replica", metavar="URL", action="append", help="http://HOST:PORT, repeat for more"
    )
    serve.add_argument("--tokenizer", metavar="DIR_OR_ID", help="with --replica: the model's own")
    serve.add_argument("--policy", choices=sorted(POLICIES), help="with --replica")
    serve.add_argument("--host", help="with --replica: address of the public listener")
    serve.add_argument("--port", type=int, help="with --replica: port of the public listener")
    serve.add_argument("--admin-port", type=int, help="with --replica: port of the admin listener")
    serve.add_argument(
        "--workers",
        metavar="N",
        type=_num_workers,
        default=1,
        help="processes that share the listener, each with a core to itself",
    )
    check = commands.add_parser("check", help="validate a configuration")
    check.add_argument("file", metavar="FILE")
    check.add_argument(
        "--connect",
        action="store_true",
        help="also ask every replica what it is; exits 1 where one does not fit",
    )
    cli_admin.add_commands(commands)
    cli_l2.add_commands(commands)
    commands.add_parser("version", help="print the version")
    return parser


def _check(given: argparse.Namespace) -> int:
    status = check_file(given.file, os.environ, sys.stdout)
    if status != EXIT_OK or not given.connect:
        return status
    _quiet_libraries()
    from gateway.connect import check_fleet  # noqa: PLC0415 - needs a second to import
    from gateway.proxy.tls import TlsError  # noqa: PLC0415

    sys.stdout.flush()
    try:
        return asyncio.run(check_fleet(load_config(given.file, os.environ), sys.stdout))
    except TlsError as error:
        print(f"warmroute: {error}", file=sys.stderr)
        return EXIT_FAILED


def _quiet_libraries() -> None:
    # Read by transformers and tokenizers when they are imported, so before anything imports them:
    # no advice about missing model frameworks, and no thread pool of their own beside ours.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAYON_NUM_THREADS", "1")


def _serve(given: argparse.Namespace) -> int:
    config = _config(given)
    file = None if given.config is None else Path(given.config)
    _quiet_libraries()
    from gateway.observability.logging import configure  # noqa: PLC0415 - others start in 0.2 s

    log = configure(config.logging.level)
    if given.workers > 1:
        from gateway.workers.supervisor import supervise  # noqa: PLC0415

        return supervise(config, log, file, given.workers)
    from gateway.serving import serve  # noqa: PLC0415 - seconds, which the supervisor need not wait

    return serve(config, log, file)


def _config(given: argparse.Namespace) -> GatewayConfig:
    flags = ("tokenizer", "policy", "host", "port", "admin_port")
    if given.file is not None:
        if given.config is not None:
            _usage("FILE and --config exclude each other")
        given.config = given.file
    if given.config is not None:
        clashing = [name for name in ("replica", *flags) if getattr(given, name) is not None]
        if clashing:
            _usage(f"--config and --{clashing[0].replace('_', '-')} exclude each other")
        return load_config(given.config, os.environ)
    if not given.replica:
        _usage("give --config FILE, or --replica URL once or more")
    return config_from_flags(
        given.replica,
        given.tokenizer,
        host=given.host,
        port=given.port,
        admin_port=given.admin_port,
        policy=given.policy,
    )


def _num_workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MAX_WORKERS}, got {text!r}")
    return int(text)


def _usage(problem: str) -> None:
    print(f"warmroute serve: {problem}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


if __name__ == "__main__":
    sys.exit(main())
