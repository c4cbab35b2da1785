"""A shared directory as the engine's L2, with files named as LMCache 0.5.6 names them.

Written apart from the gateway's own code for these names, so that one checks the other.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from blake3 import blake3
from cbor2 import dumps

from routing.lab.sequence import SequenceState

MODES = ("multiprocess", "in_process")
# What LMCache writes before the raw KV data in process: length, format, type, shape.
_HEADER = struct.Struct("=7i")


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    """The directory, and what makes the names.

    Attributes:
        path: Must exist.
        mode: One of MODES: blake3 names, or those of sha256_cbor without a seed.
        model_path: What the engine was started with.
        chunk_tokens: Tokens a file.
        world_size: Files a chunk.
        dtype: In process only.
        token_bytes: Size of the KV data of one token over all ranks; 0 writes a few bytes, as an
            empty file is no chunk.
    """

    path: Path
    mode: str
    model_path: str
    chunk_tokens: int = 256
    world_size: int = 1
    dtype: str = "bfloat16"
    token_bytes: int = 0


class SharedDirectory:
    """What one replica reads from and writes to the directory; see `routing.lab.tiers.FarTier`."""

    def __init__(self, options: DirectoryOptions, block_size: int) -> None:
        self._options = options
        self._block_size = block_size

    def leading_run(self, sequence: SequenceState, start: int, end: int) -> int:
        """Return how many blocks from `start` on, and before `end`, are in leading chunks."""
        options, num_chunks = self._options, 0
        for digest in self._digests(sequence, end * self._block_size):
            names = self._names(digest, sequence.cache_salt)
            if not all((options.path / name).is_file() for name in names):
                break
            num_chunks += 1
        return max(0, num_chunks * options.chunk_tokens // self._block_size - start)

    def store(
        self,
        sequence: SequenceState,
        first: int,  # noqa: ARG002 - files that are there are passed over anyway
        end: int,
    ) -> None:
        """Write the full chunks of the blocks before `end`; those that are there stay."""
        num_tokens = min(end * self._block_size, sequence.num_prompt)
        for digest in self._digests(sequence, num_tokens):
            for name in self._names(digest, sequence.cache_salt):
                self._write(name)

    def clear(self) -> None:
        """Do nothing: a replica that resets its caches leaves the others' files alone."""

    def _write(self, name: str) -> None:
        path = self._options.path / name
        if path.exists():
            return
        body = bytes(max(1, self._options.token_bytes * self._options.chunk_tokens))
        header = b"" if self._options.mode == "multiprocess" else _HEADER.pack(len(body), *[0] * 6)
        # Several replicas write the same chunk: each through a name of its own.
        part = path.with_name(f"{name}.{os.getpid()}.tmp")
        part.write_bytes(header + body)
        part.replace(path)

    def _digests(self, sequence: SequenceState, num_tokens: int) -> Iterator[str]:
        size = self._options.chunk_tokens
        chunks = (
            sequence.tokens[at : at + size].tolist() for at in range(0, num_tokens - size + 1, size)
        )
        if self._options.mode == "multiprocess":
            before = blake3(bytes(8) + struct.pack(">I", 0)).digest()
            for chunk in chunks:
                before = blake3(before + struct.pack(f">{size}I", *chunk)).digest()
                yield before.hex()
            return
        number = _leading(dumps("vllm-none-hash", canonical=True))
        for chunk in chunks:
            number = _leading(dumps((number, tuple(chunk), ()), canonical=True))
            yield f"{number:x}"

    def _names(self, digest: str, salt: str | None) -> list[str]:
        options = self._options
        model, world = options.model_path.replace("/", "-SEP-"), options.world_size
        if options.mode == "multiprocess":
            tail = f"@{salt}.data" if salt else ".data"
            ranks = [f"0x{world:02x}{rank:02x}{world:02x}{rank:02x}" for rank in range(world)]
            return [f"{model}@{rank}@0@{digest}{tail}" for rank in ranks]
        return [f"{model}@{world}@{rank}@{digest}@{options.dtype}.data" for rank in range(world)]


def _leading(dumped: bytes) -> int:
    return int.from_bytes(sha256(dumped).digest()[:8], "big")
