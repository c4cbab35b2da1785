"""Chunk hashes as LMCache computes them. Pure.

A chunk is LMCache's unit, 256 tokens by default. Its hash covers the chunk and everything before
it, as our block keys do, but it is LMCache's own and names the files of the shared pool.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from hashlib import sha256

import cbor2
from blake3 import blake3

from gateway.l2.file_form import NameForm
from gateway.l2.seeds import hash_of_text
from routing.hashing import TOKEN_BYTES, unpack_tokens

Digest = int | bytes
"""A chunk's hash: an integer of the in-process form, 32 bytes of the multiprocess form and of
LMCache before 0.4.6 with sha256."""

# What vLLM hashes where PYTHONHASHSEED is not set, from 0.29 on; before, 32 random bytes.
UNSEEDED = "vllm-none-hash"
# LMCache takes the first 8 bytes of a digest; vLLM's events take the last.
_INT_BYTES = 8
# vLLM's pickle.HIGHEST_PROTOCOL, of all Python versions that it runs on.
_PICKLE_PROTOCOL = 5
# `hash(None)` from Python 3.12 on; before, it is an address and differs from process to process.
_HASH_OF_NONE = 0xFCA86420
# What is hashed ends with the extra keys of a request: none of them. Older versions hash a None.
_CLOSED_BY_TUPLE = frozenset({NameForm.CURRENT, NameForm.V0_4_1})


class Algorithm(StrEnum):
    """Hash algorithms, by LMCache's names."""

    BUILTIN = "builtin"  # in-process, LMCache's default
    SHA256_CBOR = "sha256_cbor"  # in-process
    SHA256 = "sha256"  # in-process; of a pickle
    BLAKE3 = "blake3"  # multiprocess


class Unhashable(ValueError):
    """Nobody can compute these hashes; the text says why and what to set."""


@dataclass(frozen=True, slots=True)
class ChunkHasher:
    """Computes the hashes of a prompt's chunks, one after the other.

    Attributes:
        algorithm: As the engines' LMCache is configured.
        chunk_tokens: Tokens a chunk.
        root: The value before the first chunk.
        step: From the value before and a chunk's packed tokens to the chunk's.
    """

    algorithm: Algorithm
    chunk_tokens: int
    root: Digest
    step: Callable[[Digest, bytes], Digest]

    def hashes(
        self, packed: bytes, start: int = 0, before: Digest | None = None
    ) -> Iterator[Digest]:
        """Yield the hashes of full chunks.

        Args:
            packed: Token ids as `routing.hashing.pack_tokens` makes them.
            start: The first chunk's number.
            before: The hash of the chunk before it; None at the start of a prompt.
        """
        chunk_bytes = self.chunk_tokens * TOKEN_BYTES
        digest = self.root if before is None else before
        for offset in range(start * chunk_bytes, len(packed) - chunk_bytes + 1, chunk_bytes):
            digest = self.step(digest, packed[offset : offset + chunk_bytes])
            yield digest


def chunk_hasher(
    algorithm: Algorithm,
    chunk_tokens: int,
    seed: int | None,
    form: NameForm = NameForm.CURRENT,
) -> ChunkHasher:
    """Return what computes the hashes of a fleet's chunks.

    Args:
        algorithm: As the engines' LMCache is configured.
        chunk_tokens: Tokens a chunk.
        seed: The engines' PYTHONHASHSEED; None where it is not set.
        form: Which LMCache; in-process only.

    Raises:
        Unhashable: `builtin` without a seed is another in every process.
    """
    if algorithm is Algorithm.BLAKE3:
        return ChunkHasher(algorithm, chunk_tokens, _blake3_root(), _blake3_step)
    if algorithm is Algorithm.BUILTIN:
        if seed is None:
            raise Unhashable(
                "`builtin` hashes differ from process to process unless PYTHONHASHSEED is set: "
                "set it on the engines and as `seed` here, or use sha256_cbor on both"
            )
        last: object = () if form in _CLOSED_BY_TUPLE else _HASH_OF_NONE
        root = hash_of_text(str(seed), seed)
        return ChunkHasher(algorithm, chunk_tokens, root, partial(_builtin_step, last))
    dump = _dump_cbor if algorithm is Algorithm.SHA256_CBOR else _dump_pickle

    def digest(item: object) -> Digest:
        whole = sha256(dump(item)).digest()
        if form is NameForm.CURRENT:
            return int.from_bytes(whole[:_INT_BYTES], "big")
        return whole

    end = () if form in _CLOSED_BY_TUPLE else None
    return ChunkHasher(
        algorithm,
        chunk_tokens,
        digest(UNSEEDED if seed is None else str(seed)),
        lambda before, chunk: digest((before, tuple(unpack_tokens(chunk)), end)),
    )


def _builtin_step(last: object, before: Digest, chunk: bytes) -> Digest:
    # Of integers and tuples: the same in every process, whatever its seed.
    return hash((before, tuple(unpack_tokens(chunk)), last))


def _dump_cbor(item: object) -> bytes:
    return cbor2.dumps(item, canonical=True)


def _dump_pickle(item: object) -> bytes:
    return pickle.dumps(item, protocol=_PICKLE_PROTOCOL)


def _blake3_root() -> bytes:
    return _blake3_step((0).to_bytes(_INT_BYTES, "big"), bytes(TOKEN_BYTES))


def _blake3_step(before: Digest, chunk: bytes) -> bytes:
    assert isinstance(before, bytes)  # noqa: S101 - the root of this algorithm is
    tokens = array("I", chunk)
    tokens.byteswap()  # hashed in network order, packed in ours (little-endian machines only)
    return blake3(before + tokens.tobytes()).digest()
