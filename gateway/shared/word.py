"""What one gateway tells the others, in each tick. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

# 1,000 busy replicas with long names are 60 KB; what is longer is not of ours.
MAX_WORD_BYTES = 1024 * 1024


class Word(msgspec.Struct, array_like=True, frozen=True):
    """All that a gateway tells in one tick. Only the end may grow: older versions read the start.

    Attributes:
        loads: Requests in flight, outstanding prefill in seconds and KV tokens, of the replicas
            where it has something in flight.
        ejected: Replicas that it ejected by its own evidence: a number of that ejection, the
            milliseconds until a probe may end it, and why in one word.
        doubts: Replicas owned by others whose entries should not count: which life, and the start
            of the engine process that it saw (0: it distrusts the engine's word).
        wants: Replicas owned by others that should be its own.
        taken: Requests that it let in since it started, by API key's tag, where keys have a rate.
        flushed: Number of the last flush of a model's shared pool that it knows of, by model key.
    """

    loads: Mapping[str, tuple[int, float, int]] = {}
    ejected: Mapping[str, tuple[int, int, str]] = {}
    doubts: Mapping[str, tuple[int, float]] = {}
    wants: tuple[str, ...] = ()
    taken: Mapping[bytes, int] = {}
    flushed: Mapping[str, int] = {}


SILENCE = Word()


def encode_word(word: Word) -> bytes:
    """Return it as msgpack."""
    return msgspec.msgpack.encode(word)


def decode_word(text: bytes) -> Word:
    """Return what another gateway told; `SILENCE` for what cannot be read."""
    if len(text) > MAX_WORD_BYTES:
        return SILENCE
    try:
        return msgspec.msgpack.decode(text, type=Word)
    except msgspec.DecodeError:
        return SILENCE
