"""Replicas from a file that another program writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_core import PydanticCustomError

from gateway.config.discovery import FileDiscoveryConfig
from gateway.config.document import parse
from gateway.config.errors import ConfigError, Finding, Problem, key_text
from gateway.config.fields import Label, ReplicaUrl, Section, normal_url
from gateway.config.messages import findings_of
from gateway.config.watch import WatchedFile
from gateway.replicas.discovery.base import Found, Snapshot

# 300 replicas with names take 20 KiB. A file far beyond that is another file, given by mistake.
MAX_FILE_BYTES = 4 * 1024 * 1024


class ListedReplica(Section):
    """One item of the file that is a mapping."""

    url: ReplicaUrl = Field(
        description="Base address, http or https, without a path.",
        examples=["http://engine-0:8000"],
    )
    name: Label | None = Field(None, description="Name in logs, metrics and response headers.")


class FileDiscovery:
    """Follows a list of replicas in a YAML or JSON file.

    A file that is missing or wrong changes nothing.

    Args:
        config: Which file, and how often it is looked at.
    """

    def __init__(self, config: FileDiscoveryConfig) -> None:
        self._file = WatchedFile(Path(config.path), MAX_FILE_BYTES)
        self._interval_s = config.interval_s
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """`file:line: what is wrong, what would be right`; None while the file is good."""
        return self._file.problem or self._problem

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield the list, and each new one; nothing before the file was good once.

        See `Discovery.snapshots`.
        """
        in_force: Snapshot | None = None
        while True:
            content = self._file.look()
            found = await self._parse(content) if content is not None else None
            if found is not None and found != in_force:
                in_force = found
                yield found
            await asyncio.sleep(self._interval_s)

    async def _parse(self, content: bytes) -> Snapshot | None:
        """Return the list; None, and a problem, where it is none."""
        try:
            # 300 items of YAML take 40 ms: in a thread, or every stream would stop for so long.
            found = await asyncio.to_thread(parse_list, content, str(self._file.path))
        except ConfigError as error:
            first, *others = error.problems
            self._problem = f"{first} (and {len(others)} more)" if others else str(first)
            return None
        self._problem = None
        return found


def parse_list(content: bytes, file: str) -> Snapshot:
    """Return the replicas that a file lists.

    Args:
        content: YAML or JSON, UTF-8.
        file: Its name, for messages.

    Raises:
        ConfigError: It is no list of replicas; says the lines and why.
    """
    document = parse(_text(content, file), file, {})
    findings = list(document.findings)
    found: list[Found] = []
    if not findings:
        found, findings = _items(document.value)
    if findings:
        raise ConfigError([document.problem(finding) for finding in findings])
    return frozenset(found)


def _text(content: bytes, file: str) -> str:
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError([Problem(f"{file}:1", "(file)", "too large for a list of replicas")])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(f"{file}:{line}", "(file)", "not UTF-8 text")]) from None
    if all(line.lstrip().startswith(("#", "---")) for line in text.splitlines() if line.strip()):
        what = "is empty, write [] where there are no replicas"
        raise ConfigError([Problem(f"{file}:1", "(file)", what)])
    return text


def _items(value: Any) -> tuple[list[Found], list[Finding]]:
    if not isinstance(value, list):
        text = "must be a list of replicas, each an address or a mapping of url and name"
        return [], [Finding((), text)]
    found: list[Found] = []
    findings: list[Finding] = []
    for i, item in enumerate(value):
        try:
            found.append(_item(item))
        except PydanticCustomError as error:
            findings.append(Finding((i,), error.message()))
        except ValidationError as error:
            wrong = findings_of(error, ListedReplica)
            findings += [replace(finding, path=(i, *finding.path)) for finding in wrong]
    return found, findings or list(_doubles(found))


def _item(item: Any) -> Found:
    if isinstance(item, str):
        return Found(normal_url(item))
    listed = ListedReplica.model_validate(item)
    return Found(listed.url, listed.name or "")


def _doubles(found: list[Found]) -> Iterator[Finding]:
    place_by_text: dict[str, int] = {}
    for i, one in enumerate(found):
        for text in filter(None, (one.url, one.name)):
            first = place_by_text.setdefault(text, i)
            if first != i:
                yield Finding((i,), f"must be unique, {key_text((first,))} has {text} too")
                break
