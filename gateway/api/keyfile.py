"""Reads the key file, again whenever it changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.api.access import Keys
from gateway.config.access import AuthConfig, KeyConfig
from gateway.config.errors import ConfigError
from gateway.config.load import load_keys
from gateway.config.watch import WatchedFile
from gateway.observability.logging import EventLog

# How often the file is looked at. A revoked key works this much longer, twice where the file is
# written in place.
WATCH_INTERVAL_S = 1.0
# 10,000 keys with their limits take 1 MiB.
MAX_FILE_BYTES = 16 * 1024 * 1024


def load_all_keys(auth: AuthConfig, environ: Mapping[str, str]) -> list[KeyConfig]:
    """Return the keys of the configuration and of its key file.

    Raises:
        ConfigError: The key file cannot be read or is wrong.
    """
    from_file = load_keys(auth.keys_file, environ) if auth.keys_file is not None else ()
    return [*auth.keys, *from_file]


async def watch_keys(auth_now: Callable[[], AuthConfig], keys: Keys, log: EventLog) -> None:
    """Put a changed key file in force until cancelled; a broken one changes nothing.

    Apart from the reload of the configuration: to revoke a key must work while that is broken.

    Args:
        auth_now: Returns the section in force, which may name another file one day.
        keys: Takes the keys.
        log: Gets one line for each change.
    """
    file: WatchedFile | None = None
    auth: AuthConfig | None = None
    while True:
        before, auth = auth, auth_now()
        if auth.keys_file is None:
            file = None
        else:
            if file is None or str(file.path) != auth.keys_file:
                file = WatchedFile(Path(auth.keys_file), MAX_FILE_BYTES)
            # Whoever put another section in force read the file before that, perhaps long before:
            # between the two, tokenizers were loaded.
            if file.look() is not None or auth is not before:
                await _load(auth_now, keys, log)
            elif file.just_lost:
                log.warning("keys_file_broken", problem=file.problem)
        await asyncio.sleep(WATCH_INTERVAL_S)


async def _load(auth_now: Callable[[], AuthConfig], keys: Keys, log: EventLog) -> None:
    auth = auth_now()
    try:
        # 1,000 keys of YAML take 0.15 s: in a thread, or every stream would stop so long.
        found = await asyncio.to_thread(load_all_keys, auth, os.environ)
    except ConfigError as problem:
        log.warning("keys_file_broken", problem=str(problem))
    else:
        # A section that came into force meanwhile is looked at next.
        if auth is auth_now() and keys.replace(found):
            log.info("keys_file_loaded", file=auth.keys_file)
