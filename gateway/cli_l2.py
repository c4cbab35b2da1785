"""The commands around the shared cache: `l2-janitor` and `patch-deployment`."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from gateway.l2 import janitor_command
from gateway.patch import command as patch_command


def add_commands(commands: Any) -> None:
    """Add the commands to a parser; each sets `l2_call` to the function that runs it.

    Args:
        commands: What `ArgumentParser.add_subparsers` returned.
    """
    janitor_command.add_command(commands)
    patch_command.add_command(commands)


def call(given: argparse.Namespace, out: TextIO, err: TextIO) -> int:
    """Run a command of this file.

    Args:
        given: Parsed arguments.
        out: Gets what was asked for.
        err: Gets progress and what is wrong.

    Returns:
        The exit code.
    """
    status: int = given.l2_call(given, out, err)
    return status
