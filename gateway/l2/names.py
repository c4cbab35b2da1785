"""Names of the files in which LMCache keeps chunks on a shared directory. Pure.

A gateway that sees the directory can say what is in the pool without asking anybody: it computes
the names of a prompt's chunks and looks whether they are there.

Source:
    LMCache 0.3.7 to 0.5.6: CacheEngineKey and fs_connector.py (in-process), the `fs` adapter of
    the multiprocess server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.l2.chunks import Digest
from gateway.l2.file_form import Mode, NameForm, ParsedName, read_model

SUFFIX = ".data"
# Hybrid models have several KV cache groups; group 0 is the one with full attention.
_GROUP = "0"
# What LMCache's ObjectKey takes; half of a surrogate pair cannot be sent or be part of a name.
_SALT = re.compile(r"[^@/\\\0\ud800-\udfff]{0,128}")


@dataclass(frozen=True, slots=True)
class FileNames:
    """Makes the names of chunks.

    Attributes:
        mode: Which LMCache.
        model: What the engines were started with (`--model`), not the served name.
        world_size: Tensor-parallel times pipeline-parallel ranks: one file each. 1 for MLA models.
        dtype: Of the KV cache, as PyTorch names it without `torch.`; in-process only.
        form: In-process only.
        local_world_size: Ranks on one node; multiprocess only.
    """

    mode: Mode
    model: str
    world_size: int = 1
    dtype: str = "bfloat16"
    form: NameForm = NameForm.CURRENT
    local_world_size: int | None = None

    def of(self, digest: Digest, rank: int, salt: str = "") -> str:
        """Return the name of one rank's part of a chunk.

        Args:
            digest: The chunk's hash.
            rank: From 0 on.
            salt: The request's `cache_salt`, for which `is_salt` holds. In-process names do not
                have it: there, salts do not keep tenants apart.
        """
        model = self.model.replace("/", self.form.slash)
        hexed = digest.hex() if isinstance(digest, bytes) else f"{digest:x}"
        if self.mode is Mode.MULTIPROCESS:
            salted = f"@{salt}" if salt else ""
            return f"{model}@0x{self._kv_rank(rank):08x}@{_GROUP}@{hexed}{salted}{SUFFIX}"
        tail = "" if self.form is NameForm.V0_3_7 else f"@{self.dtype}"
        return f"{self.form.prefix}{model}@{self.world_size}@{rank}@{hexed}{tail}{SUFFIX}"

    @property
    def told_model(self) -> str:
        """The model as `parse_name` reads it from one of these names."""
        return read_model(self.model.replace("/", self.form.slash))

    def _kv_rank(self, rank: int) -> int:
        local = self.local_world_size or self.world_size
        return self.world_size << 24 | rank << 16 | local << 8 | rank % local


def is_salt(salt: str) -> bool:
    """Return whether the multiprocess form keeps chunks under a salt; it refuses others."""
    return _SALT.fullmatch(salt) is not None


def path_index(digest: Digest, num_paths: int) -> int:
    """Return which of several base paths holds a chunk; only integers share several."""
    return abs(digest) % num_paths if isinstance(digest, int) else 0


def why_no_match(names: FileNames, found: Sequence[ParsedName]) -> str:
    """Return the likely reason why none of the names that we compute are among those found.

    Args:
        names: Ours.
        found: A sample of the directory, not empty.
    """
    return disagreement(names, found) or (
        "names differ only in their hashes: another hash algorithm, PYTHONHASHSEED, chunk size, or "
        "version of LMCache or vLLM than `hash`, `seed`, `chunk_tokens` and `name_form` say, or "
        "other token ids than the engines'"
    )


def disagreement(names: FileNames, found: Sequence[ParsedName]) -> str | None:
    """Return which part of the names no file agrees with; None where all parts but hashes may.

    Args:
        names: Ours.
        found: A sample of the directory, not empty.
    """
    told: list[tuple[str, str, object, set[object]]] = [
        ("mode", "mode", names.mode, {name.mode for name in found}),
        ("name form", "name_form", names.form.shape, {name.form.shape for name in found}),
        ("model", "model_path", names.told_model, {name.model for name in found}),
        ("world size", "world_size", names.world_size, {name.world_size for name in found}),
    ]
    if names.mode is Mode.IN_PROCESS and names.form is not NameForm.V0_3_7:
        told.append(("dtype", "dtype", names.dtype, {name.dtype for name in found}))
    for what, key, ours, theirs in told:
        if ours not in theirs:
            shown = ", ".join(sorted(map(str, theirs))[:3])
            return f"the files say {what} {shown} where {key} is {ours}"
    return None
