"""The form of the names that LMCache gives its files, and what one of them tells. Pure.

Two forms share a directory, both `<key>.data` with `@` between the parts and `-SEP-` for `/` (`-`
before 0.3.10):

    in-process     [vllm@]<model>@<world size>@<rank>@<chunk>[@<dtype>][@<layer>|@<tag>%<value>]
    multiprocess   <model>@0x<kv rank>[@<group>]@<chunk>[@<salt>]

Files that are being written end in `.tmp` in place of `.data`, or have the final name and lie in a
directory of the writer's own, `tmp-<pod>` where `warmroute patch-deployment` said so.

A janitor deletes what matches here and nothing else, so this is as narrow as LMCache's own writing.

Source:
    LMCache 0.3.7 to 0.5.6: CacheEngineKey and fs_connector.py (in-process), fs_l2_adapter.py
    (multiprocess).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum

from routing.value import value

# Before 0.3.13 names began with `vllm@`, and 0.3.7 wrote no dtype. The chunk is a 64-bit integer in
# hexadecimal, signed where Python's hash() made it; of 0.3.13 to 0.4.5 with sha256 all 32 bytes.
_IN_PROCESS = re.compile(
    r"(?P<old>vllm@)?(?P<model>[^@/]+)@(?P<world>[1-9][0-9]{0,4})@(?P<rank>[0-9]{1,5})"
    r"@(?P<digest>-?[0-9a-f]{1,16}|[0-9a-f]{64})(?:@(?P<dtype>[a-z][a-z0-9_]*))?"
    r"(?:@[0-9]{1,5}|(?:@[^@%/]+%[^@/]*)+)?\.data"
)
# kv rank: world size, rank, world size and rank on the host, a byte each. Versions before object
# groups had no such part. A digest has 8 (64-bit hashes) to 64 bytes; blake3's has 32.
_MULTIPROCESS = re.compile(
    r"(?P<model>[^@/]+)@0x(?P<world>[0-9a-f]{2})(?P<rank>[0-9a-f]{2})[0-9a-f]{4}"
    r"(?:@[0-9a-f]{1,8})?@(?P<digest>(?:[0-9a-f]{2}){8,64})(?:@(?P<salt>[^@/]+))?\.data"
)
# What the patch begins the name of each pod's directory for temporary files with.
TMP_FOLDER = "tmp-"
_FINAL, _TEMPORARY = ".data", ".tmp"
_SLASH = "-SEP-"
# Digits of a 64-bit hash, and its sign.
_INT_DIGITS = 17


class Mode(StrEnum):
    """The two ways in which LMCache runs."""

    IN_PROCESS = "in_process"  # LMCacheConnectorV1, LMCACHE_REMOTE_URL=fs://
    MULTIPROCESS = "multiprocess"  # LMCacheMPConnector, an LMCache server beside the engine


class NameForm(StrEnum):
    """How in-process names and their hashes are made, by the LMCache version that began it."""

    CURRENT = "current"  # 0.4.6 and later: model@world@rank@hash@dtype
    V0_4_1 = "0.4.1"  # a sha256 hash is all of its 32 bytes
    V0_3_13 = "0.3.13"  # and what is hashed ends with None
    V0_3_10 = "0.3.10"  # vllm@model@world@rank@hash@dtype
    V0_3_9 = "0.3.9"  # with `-` for a slash
    V0_3_7 = "0.3.7"  # and without a dtype

    @property
    def shape(self) -> NameForm:
        """The form whose names look the same, but for what the hash is."""
        return NameForm.CURRENT if self in (NameForm.V0_4_1, NameForm.V0_3_13) else self

    @property
    def prefix(self) -> str:
        """What names begin with."""
        return "" if self.shape is NameForm.CURRENT else "vllm@"

    @property
    def slash(self) -> str:
        """What stands for a slash of the model's path."""
        return "-" if self in (NameForm.V0_3_9, NameForm.V0_3_7) else _SLASH


@value
class ParsedName:
    """What one file's name says of the LMCache that wrote it.

    Attributes:
        mode: Which LMCache.
        form: In-process only; the first one of which it can be.
        model: What the engine was started with (`--model`), often a path. Versions before `-SEP-`
            wrote `-` for `/`, which cannot be turned back.
        world_size: Ranks that hold a part of each chunk, at least 1.
        rank: From 0, below the world size.
        digest: The chunk's hash as the name has it: hexadecimal, with a sign where it has one.
        dtype: None where the name does not say it.
        salt: Empty for none.
    """

    mode: Mode
    form: NameForm
    model: str
    world_size: int
    rank: int
    digest: str
    dtype: str | None = None
    salt: str = ""


def parse_name(file_name: str) -> ParsedName | None:
    """Return what a file's name says; None where LMCache would not have made it.

    Args:
        file_name: Without a directory.
    """
    found = _MULTIPROCESS.fullmatch(file_name)
    if found is not None:
        mode, base, form = Mode.MULTIPROCESS, 16, NameForm.CURRENT
        dtype, salt = None, found["salt"] or ""
    else:
        found = _IN_PROCESS.fullmatch(file_name)
        if found is None or not (found["dtype"] or found["old"]):
            return None
        mode, base, form = Mode.IN_PROCESS, 10, _form_of(found)
        dtype, salt = found["dtype"], ""
    world_size, rank = int(found["world"], base), int(found["rank"], base)
    if rank >= world_size:
        return None
    return ParsedName(
        mode=mode,
        form=form,
        model=read_model(found["model"]),
        world_size=world_size,
        rank=rank,
        digest=found["digest"],
        dtype=dtype,
        salt=salt,
    )


def is_temporary(file_name: str, *, in_folder: bool) -> bool:
    """Return whether LMCache gives this name to a file that it is writing.

    Args:
        file_name: Without a directory.
        in_folder: It lies in a directory of the writer's own.
    """
    if not in_folder:
        if not file_name.endswith(_TEMPORARY):
            return False
        file_name = file_name.removesuffix(_TEMPORARY) + _FINAL
    return parse_name(file_name) is not None


def read_model(written: str) -> str:
    """Return the model that a file's name writes; of `-` for a slash nobody can tell."""
    return written.replace(_SLASH, "/")


def _form_of(found: re.Match[str]) -> NameForm:
    if not found["old"]:
        return NameForm.CURRENT if len(found["digest"]) <= _INT_DIGITS else NameForm.V0_4_1
    if not found["dtype"]:
        return NameForm.V0_3_7
    return NameForm.V0_3_10 if _SLASH in found["model"] else NameForm.V0_3_9


def sibling_names(file_name: str, parsed: ParsedName) -> Iterator[str]:
    """Yield the names that the other ranks' parts of the same chunk have.

    A chunk serves nobody when one of them is missing. All lie in one directory, as LMCache chooses
    among its base paths by the chunk.

    Args:
        file_name: The name of any part.
        parsed: What `parse_name` made of it.
    """
    ranks = (rank for rank in range(parsed.world_size) if rank != parsed.rank)
    if parsed.mode is Mode.MULTIPROCESS:
        head, _, rest = file_name.partition("@0x")
        host_world = int(rest[4:6], 16) or 1
        for rank in ranks:
            # Ranks are dealt to hosts in order, so the rank on the host follows from it.
            yield f"{head}@0x{rest[:2]}{rank:02x}{rest[4:6]}{rank % host_world:02x}{rest[8:]}"
        return
    old = parsed.form.prefix
    model, world, _, tail = file_name.removeprefix(old).split("@", 3)
    for rank in ranks:
        yield f"{old}{model}@{world}@{rank}@{tail}"
