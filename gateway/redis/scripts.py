"""Lua scripts as files of the package, named by their digest."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script that the server runs in one step.

    Attributes:
        name: For metrics.
        text: What `EVAL` sends where the server does not know the digest yet.
        digest: What `EVALSHA` sends.
        writes: Whether it changes anything. Calls that only read share a connection of their own,
            so that they do not wait behind bulk, and they alone are given up when it is slow.
    """

    name: str
    text: bytes
    digest: bytes
    writes: bool


def load_script(package: str, path: str, *, writes: bool) -> Script:
    """Return a script that lies in a package.

    Args:
        package: Dotted name, such as `gateway.index`.
        path: Of the file in it, such as `lua/store.lua`.
        writes: Whether it changes anything.
    """
    text = files(package).joinpath(path).read_bytes()
    name = path.rpartition("/")[2].removesuffix(".lua")
    digest = sha1(text, usedforsecurity=False).hexdigest().encode()
    return Script(name, text, digest, writes)
