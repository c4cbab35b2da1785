"""The command `warmroute`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from gateway import cli_admin
from gateway.config.check import EXIT_VALID, check_file
from gateway.config.errors import ConfigError
from gateway.config.load import config_from_flags, load_config
from gateway.config.models import GatewayConfig
from routing.policies import POLICIES

# New objects, less those that died, between two collections of the youngest ones. Requests leave no
# cycles, and a thousand that are under way hold 100,000 objects that each pass would look at; the
# interpreter's own 700 costs 3 % of a short request.
GC_NEW_OBJECTS = 50_000
# How long a thread that prepares a long prompt may keep the event loop waiting for its turn; the
# interpreter's own 5 ms are as much as such a prompt may cost another request in all.
THREAD_TURN_S = 0.5e-3

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # as argparse: the command or its configuration is wrong


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
    serve.add_argument("--config", metavar="FILE", help="configuration, YAML")
    serve.add_argument("--replica", metavar="URL", action="append", help="repeat for more")
    serve.add_argument("--tokenizer", metavar="DIR_OR_ID", help="with --replica: the model's own")
    serve.add_argument("--policy", choices=sorted(POLICIES), help="with --replica")
    serve.add_argument("--host", help="with --replica: address of the public listener")
    serve.add_argument("--port", type=int, help="with --replica: port of the public listener")
    serve.add_argument("--admin-port", type=int, help="with --replica: port of the admin listener")
    check = commands.add_parser("check", help="validate a configuration")
    check.add_argument("file", metavar="FILE")
    check.add_argument(
        "--connect",
        action="store_true",
        help="also ask every replica what it is; exits 1 where one does not fit",
    )
    cli_admin.add_commands(commands)
    commands.add_parser("version", help="print the version")
    return parser


def _check(given: argparse.Namespace) -> int:
    status = check_file(given.file, os.environ, sys.stdout)
    if status != EXIT_VALID or not given.connect:
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
    _quiet_libraries()
    import uvloop  # noqa: PLC0415 - `check` and `version` need none of this, and start in 0.2 s

    from gateway.observability.logging import configure  # noqa: PLC0415
    from gateway.proxy.tls import TlsError  # noqa: PLC0415
    from gateway.runtime import Gateway  # noqa: PLC0415
    from gateway.server import ListenError  # noqa: PLC0415

    gc.set_threshold(GC_NEW_OBJECTS)
    sys.setswitchinterval(THREAD_TURN_S)
    log = configure(config.logging.level)

    async def run() -> None:
        gateway = Gateway(config, log, None if given.config is None else Path(given.config))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, gateway.stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gateway.reload)
        await gateway.run()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except (ListenError, TlsError) as error:
        print(f"warmroute: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def _config(given: argparse.Namespace) -> GatewayConfig:
    flags = ("tokenizer", "policy", "host", "port", "admin_port")
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


def _usage(problem: str) -> None:
    print(f"warmroute serve: {problem}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


if __name__ == "__main__":
    sys.exit(main())
