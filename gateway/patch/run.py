"""`warmroute patch-deployment`: reads, patches, writes, compares."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import yaml

from gateway.patch.command import EXIT_DRIFT, EXIT_OK, EXIT_USAGE
from gateway.patch.container import values_of
from gateway.patch.counters import problems, traffic
from gateway.patch.drift import drift_of
from gateway.patch.live import Live, Unreachable, from_objects, objects_in
from gateway.patch.objects import (
    ENDPOINT_KIND,
    Patched,
    Target,
    is_candidate,
    label,
    name_of,
    patch,
)
from gateway.patch.policy import kyverno, merge_patch
from gateway.patch.settings import CannotPatch, Settings
from gateway.patch.yamltext import CannotChange, Part, read, rewrite, split

_ENDLESS = 2**30  # columns, so that nothing is folded


class _Unusable(Exception):
    """The command cannot be done; the text says why."""


def run(given: argparse.Namespace, out: TextIO, err: TextIO) -> int:
    """Run the command.

    Args:
        given: Parsed arguments.
        out: Gets what was asked for.
        err: Gets notes, and what is wrong.

    Returns:
        The exit code.
    """
    try:
        settings = _settings(given)
        text = _text(given.file)
        changed, patched = _patch_all(text, given, settings)
        if given.verify:
            return _verify(patched, settings, given, out)
        for one in patched:
            err.writelines(f"note: {label(one.wanted)}: {note}\n" for note in one.notes)
        _write(text, changed, patched, settings, given, out)
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        err.write(f"warmroute patch-deployment: {named}{error.strerror}\n")
        return EXIT_USAGE
    except (_Unusable, Unreachable) as error:
        err.write(f"warmroute patch-deployment: {error}\n")
        return EXIT_USAGE
    return EXIT_OK


def _settings(given: argparse.Namespace) -> Settings:
    mount_path = given.mount_path.rstrip("/")
    if not mount_path.startswith("/"):
        raise _Unusable(f"--mount-path {given.mount_path} is no absolute path below /")
    if "," in mount_path:
        raise _Unusable("--mount-path with a comma: LMCache would read two paths")
    if given.metrics and not given.live:
        raise _Unusable("--metrics goes with --live; a cluster is asked for its replicas' metrics")
    return Settings(
        claim=given.pvc,
        mount_path=mount_path,
        volume=given.volume,
        events_port=given.events_port,
        replay_port=given.replay_port,
        chunk_tokens=given.chunk_tokens,
        hash_algorithm=given.hash,
        seed=given.seed,
        l1_gb=given.l1_gb,
        l1_events=given.l1_events,
    )


def _text(file: str) -> str:
    # Bytes, as reading text would make all line ends alike.
    given = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        return given.decode("utf-8")
    except UnicodeDecodeError:
        raise _Unusable(f"{file} is no UTF-8 text") from None


def _patch_all(
    text: str, given: argparse.Namespace, settings: Settings
) -> tuple[str, list[Patched]]:
    """Return the stream as it is to be, and the objects in it that are replicas."""
    # Of a mixture every line keeps its own end, and new ones get a plain one.
    returns = 0 < text.count("\r\n") == text.count("\n")
    stream = text.replace("\r\n", "\n") if returns else text
    written, patched = [], []
    for number, part in enumerate(split(stream), 1):
        try:
            new, one = _patch_part(part, given, settings)
        except (CannotChange, CannotPatch) as error:
            raise _Unusable(f"{_where(given.file, number, part)}: {error}") from error
        written.append(part.head + new)
        if one is not None:
            patched.append(one)
    if not patched:
        named = f" called {given.name}" if given.name else ""
        raise _Unusable(
            f"{given.file}: no InferenceEndpointConfig, Deployment or StatefulSet{named} in it "
            "runs vLLM"
        )
    changed = "".join(written)
    return (changed.replace("\n", "\r\n") if returns else changed), patched


def _patch_part(
    part: Part, given: argparse.Namespace, settings: Settings
) -> tuple[str, Patched | None]:
    thing = read(part.text)
    if isinstance(thing, dict) and isinstance(thing.get("items"), list):
        raise CannotPatch("it is a list: give its items as documents of their own")
    if not is_candidate(thing):
        return part.text, None
    if given.name and name_of(thing) != given.name:
        return part.text, None
    container = None if thing["kind"] == ENDPOINT_KIND else given.container
    one = patch(thing, settings, container)
    if one is None:
        return part.text, None
    return rewrite(part.text, one.wanted), one


def _where(file: str, number: int, part: Part) -> str:
    try:
        name = label(read(part.text))
    except CannotChange:
        name = "not readable"
    return f"{file}, document {number} from line {part.line} ({name})"


def _write(
    text: str,
    changed: str,
    patched: list[Patched],
    settings: Settings,
    given: argparse.Namespace,
    out: TextIO,
) -> None:
    if given.other:
        make = kyverno if given.other == "kyverno" else merge_patch
        things = [make(one.target, settings, _present(one)) for one in patched]
        out.write(_dumped(things))
    elif given.diff:
        before, after = text.splitlines(keepends=True), changed.splitlines(keepends=True)
        out.writelines(difflib.unified_diff(before, after, given.file, f"{given.file} (patched)"))
    elif given.in_place:
        if given.file == "-":
            raise _Unusable("--in-place needs a file")
        if changed != text:
            Path(given.file).write_text(changed, "utf-8", newline="")
    elif given.out:
        Path(given.out).write_text(changed, "utf-8", newline="")
    else:
        out.write(changed)


def _present(one: Patched) -> list[dict[str, Any]]:
    """Return the variables that an object sets itself."""
    spec = one.wanted["spec"]
    if one.target.kind == ENDPOINT_KIND:
        return list(spec["worker"].get("environmentVariables") or [])
    containers = spec["template"]["spec"]["containers"]
    return next(list(c["env"]) for c in containers if c["name"] == one.target.container)


def _dumped(things: list[Any]) -> str:
    return yaml.safe_dump_all(
        things, sort_keys=False, width=_ENDLESS, explicit_start=len(things) > 1
    )


def _verify(
    patched: list[Patched], settings: Settings, given: argparse.Namespace, out: TextIO
) -> int:
    try:
        things = [thing for file in given.live or () for thing in objects_in(_text(file))]
    except CannotChange as error:
        raise _Unusable(f"--live: {error}") from error
    pages = [Path(file).read_text("utf-8", "replace") for file in given.metrics or ()]
    drifted = False
    for one in patched:
        live = from_objects(one.target, things) if given.live else _asked(one.target, given)
        found = list(_differences(one, live, settings, pages))
        drifted = drifted or bool(found)
        out.writelines(f"DRIFT  {line}\n" for line in found)
        out.writelines(f"       Pod {name}: {traffic(page)}\n" for name, page in live.pages.items())
        out.writelines(
            f"       Pod {name}: not asked for its use of the pool, {why}\n"
            for name, why in live.silent.items()
        )
        if not found:
            out.write(f"ok     {label(one.wanted)}: {len(live.pods)} pods as they should be\n")
    return EXIT_DRIFT if drifted else EXIT_OK


def _asked(target: Target, given: argparse.Namespace) -> Live:
    from gateway.patch.cluster import from_cluster  # noqa: PLC0415 - see there

    return from_cluster(target, given.kubeconfig, given.port)


def _differences(one: Patched, live: Live, settings: Settings, pages: list[str]) -> Iterator[str]:
    present = _present(one)
    if not live.pods:
        yield f"{label(one.wanted)}: no pod with {one.target.selector}"
    # The operator's own Deployment need not have it: the policy changes pods.
    owners = live.owners if one.target.kind != ENDPOINT_KIND else []
    for thing in (*owners, *live.pods):
        yield from drift_of(thing, one.target, settings, present)
    chunk = int(settings.shared_variables(values_of(present))["LMCACHE_CHUNK_SIZE"])
    for name, page in live.pages.items():
        yield from (f"Pod {name}: {problem}" for problem in problems(page, chunk))
    for page in pages:
        yield from (f"{label(one.wanted)}, metrics: {problem}" for problem in problems(page, chunk))
