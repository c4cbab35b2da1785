"""What LMCache's own counters say of the pool, from a replica's /metrics. Pure.

A replica whose variables are right may still run without the pool: LMCache that cannot reach it
goes on without a word (aws/sagemaker-hyperpod-cli#431).
"""

from __future__ import annotations

import math
import re

# Below so many chunks asked for nothing can be said.
_MIN_CHUNKS = 2
_SAMPLE = re.compile(r"^(lmcache:[a-z0-9_:]+)(?:\{[^\n]*\})? (\S+)", re.MULTILINE)


def totals(page: str) -> dict[str, float]:
    """Return LMCache's series summed over labels, by name without `lmcache:` and `_total`."""
    result: dict[str, float] = {}
    for name, text in _SAMPLE.findall(page):
        try:
            number = float(text)
        except ValueError:
            continue
        if math.isfinite(number):
            short = name.removeprefix("lmcache:").removesuffix("_total")
            result[short] = result.get(short, 0.0) + number
    return result


def problems(page: str, chunk_tokens: int) -> list[str]:
    """Return what is wrong with the pool of a replica, one line each.

    Args:
        page: Its /metrics.
        chunk_tokens: LMCache's chunk.
    """
    told = totals(page)
    if not told:
        return ["no metric of LMCache's: it does not run in this engine"]
    found = []
    if told.get("lmcache_is_healthy", 1.0) == 0:
        found.append("lmcache_is_healthy is 0: LMCache runs degraded")
    if told.get("remote_ping_errors", 0) > 0 and not told.get("remote_ping_successes"):
        found.append(
            f"remote_ping_errors is {told['remote_ping_errors']:.0f}, and no ping succeeded"
        )
    asked = told.get("num_requested_tokens", 0)
    reads = told.get("num_remote_read_requests", 0)
    writes = told.get("num_remote_write_requests", 0)
    if asked >= _MIN_CHUNKS * chunk_tokens and not reads and not writes:
        found.append(f"LMCache was asked for {asked:,.0f} tokens, and never read or wrote the pool")
    return found


def traffic(page: str) -> str:
    """Return how much the pool was used, in a few words."""
    told = totals(page)
    reads = told.get("num_remote_read_requests", 0)
    writes = told.get("num_remote_write_requests", 0)
    asked = told.get("num_requested_tokens", 0)
    return f"{asked:,.0f} tokens asked for, {reads:,.0f} reads and {writes:,.0f} writes of the pool"
