"""Reads a configuration that is still plain data, passing over whatever has the wrong type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.errors import Path


def mappings(
    section: Mapping[str, Any], path: Path, key: str | None = None
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the mappings in the list at `key` (by default the path's last step) of `section`."""
    items = section.get(key if key is not None else str(path[-1]))
    for i, item in enumerate(items if isinstance(items, list | tuple) else ()):
        if isinstance(item, Mapping):
            yield (*path, i), item


def texts(section: Mapping[str, Any], path: Path, *keys: str) -> Iterator[tuple[Path, str]]:
    """Yield the texts at `keys` of `section`, and those in lists there."""
    for key in keys:
        value = section.get(key)
        if isinstance(value, str):
            yield (*path, key), value
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                if isinstance(item, str):
                    yield (*path, key, i), item
