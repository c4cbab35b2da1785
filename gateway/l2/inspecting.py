"""What `warmroute check --connect` says of a model's shared pool."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TextIO

from gateway.config.fleet import ModelConfig, model_key
from gateway.config.shared_cache import LmcacheFsConfig
from gateway.l2.lmcache_fs import LmcacheFs
from gateway.l2.names import FileNames, disagreement
from gateway.observability.logging import EventLog
from gateway.replicas.registry import Replica

# A listing of a directory with millions of files.
_LISTING_S = 30.0
# A mount that has not answered by then hangs.
_PROBE_S = 5.0


async def inspect_pool(model: ModelConfig, replicas: Sequence[Replica], out: TextIO) -> int:
    """Print how a model's pool is found, and what does not fit.

    Args:
        model: Its section.
        replicas: Asked before; what they were started with is part of names.
        out: Gets some lines.

    Returns:
        The number of problems.
    """
    config = model.shared_cache
    if config is None:
        return 0
    if not isinstance(config, LmcacheFsConfig):
        out.write(f"    shared cache: {config.kind}\n")
        return 0
    bases = (replica.facts.base for replica in replicas)
    roots = [base.root for base in bases if base is not None and base.root is not None]
    silent = EventLog(logging.getLogger("warmroute.check"))
    root = roots[0] if roots else None
    cache = LmcacheFs(config, model_key(model), lambda: root, silent, time.monotonic)
    try:
        return await _inspect(cache, out)
    finally:
        cache.close()


async def _inspect(cache: LmcacheFs, out: TextIO) -> int:
    paths = ", ".join(cache.mount.paths)
    try:
        async with asyncio.timeout(_PROBE_S):
            await cache.mount.probe()
    except TimeoutError:
        out.write(f"    shared cache: problem: {paths} does not answer\n")
        return 1
    if cache.mount.down_reason is not None:
        said = f" ({cache.mount.down_problem})" if cache.mount.down_problem else ""
        out.write(f"    shared cache: problem: {paths}: {cache.mount.down_reason}{said}\n")
        return 1
    try:
        async with asyncio.timeout(_LISTING_S):
            await cache.canary.read(cache.mount, cache.names)
    except TimeoutError:
        out.write(f"    shared cache: {paths} takes too long to list\n")
    names, found = cache.names, cache.canary.found
    if names is None:
        out.write("    shared cache: problem: no replica tells its model's path, set model_path\n")
        return 1
    out.write(f"    shared cache: {paths}, {_told(names)}; {len(found)} names looked at\n")
    problem = disagreement(names, found) if found else None
    if problem is not None:
        out.write(f"      problem: {problem}\n")
    return problem is not None


def _told(names: FileNames) -> str:
    parts = [f"{names.mode} names of {names.model}", f"world size {names.world_size}"]
    if names.mode == "in_process":
        parts += [names.dtype, f"form {names.form}"]
    return ", ".join(parts)
