"""Names of keys in Redis: which of them are of one layout, and which are for gateways of all. Pure.

During an upgrade gateways of two releases use one Redis. What they make anew by themselves (blocks,
predictions, lives, words) carries the number of its layout, so that gateways of different layouts
do not see each other's. What only others know, operators and clients, is for all releases, and its
form may only grow (docs/redis.md).
"""

from __future__ import annotations

from collections.abc import Sequence

# Goes up with every change of what keys of a layout hold, or of what their numbers mean, that a
# gateway of the release before would misread. The end of a word may grow without.
LAYOUT = 1


def of_layout(namespace: str) -> str:
    """Return what begins the names of this layout's keys."""
    return f"{namespace}:{LAYOUT}"


def exchange_keys(namespace: str) -> Sequence[bytes]:
    """Return the hashes of gateways, of lives and of holds, all on one node.

    A cordon is there to keep requests away, from gateways of any release: holds are for all.
    """
    keys = (f"{LAYOUT}:gateways", f"{LAYOUT}:lives", "holds")
    return [f"{{{namespace}}}:{key}".encode() for key in keys]


def whereabouts_key(namespace: str, digest: str) -> bytes:
    """Return the key of a session or a stored response, whose clients do not see an upgrade."""
    return f"{namespace}:w:{digest}".encode()
