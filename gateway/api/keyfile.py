"""Reads the key file, again whenever it changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from gateway.api.access import Keys
from gateway.config.access import AuthConfig, KeyConfig
from gateway.config.errors import ConfigError
from gateway.config.load import load_keys
from gateway.observability.logging import EventLog

# How often the file's time and size are looked at. A revoked key works this much longer.
WATCH_INTERVAL_S = 1.0


def load_all_keys(auth: AuthConfig, environ: Mapping[str, str]) -> list[KeyConfig]:
    """Return the keys of the configuration and of its key file.

    Raises:
        ConfigError: The key file cannot be read or is wrong.
    """
    from_file = load_keys(auth.keys_file, environ) if auth.keys_file is not None else ()
    return [*auth.keys, *from_file]


async def watch_keys(auth: AuthConfig, keys: Keys, log: EventLog) -> None:
    """Put a changed key file in force until cancelled; a broken one changes nothing."""
    if auth.keys_file is None:
        return
    path = Path(auth.keys_file)
    seen = _version(path)
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        version = _version(path)
        if version == seen:
            continue
        seen = version
        try:
            keys.replace(load_all_keys(auth, os.environ))
        except ConfigError as problem:
            log.warning("keys_file_broken", problem=str(problem))
        else:
            log.info("keys_file_loaded", file=auth.keys_file)


def _version(path: Path) -> tuple[int, int, int] | None:
    # The inode too: a ConfigMap swaps a link to a file that may have the same size and time.
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
