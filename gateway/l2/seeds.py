"""What Python's own hash of a text is in another process. Pure.

LMCache's default hash algorithm is Python's `hash`. Of tuples of integers it is the same in every
process; of a text it depends on PYTHONHASHSEED, which must be the engines' and not ours. A text
enters only once, as the value before the first chunk.

Source:
    CPython: Python/bootstrap_hash.c (the key from a seed), Python/pyhash.c (SipHash-1-3 from 3.11
    on, SipHash-2-4 before).
"""

from __future__ import annotations

_MASK = 2**64 - 1
_WORD_BYTES = 8
# Rounds a word and rounds at the end: SipHash-1-3.
_WORD_ROUNDS = 1
_FINAL_ROUNDS = 3
# The start of SipHash's state, "somepseudorandomlygeneratedbytes".
_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
MAX_SEED = 2**32 - 1
"""Largest PYTHONHASHSEED."""

_State = tuple[int, int, int, int]


def hash_of_text(text: str, seed: int) -> int:
    """Return `hash(text)` as CPython 3.11 and later computes it with PYTHONHASHSEED=`seed`.

    Args:
        text: ASCII, not empty.
        seed: 0 to `MAX_SEED`.

    Returns:
        A signed 64-bit integer.

    Raises:
        ValueError: Not such a text or seed.
    """
    if not text or not text.isascii() or not 0 <= seed <= MAX_SEED:
        raise ValueError("needs ASCII text and a seed of 32 bits")
    key = _secret(seed)
    words = int.from_bytes(key[:_WORD_BYTES], "little"), int.from_bytes(key[_WORD_BYTES:], "little")
    unsigned = _siphash(text.encode(), *words)
    signed = unsigned - 2**64 if unsigned >= 2**63 else unsigned
    return -2 if signed == -1 else signed  # -1 means an error in CPython


def _secret(seed: int) -> bytes:
    """Return the 16 bytes of key that CPython draws from a seed; none are random."""
    if seed == 0:
        return bytes(2 * _WORD_BYTES)
    state, drawn = seed, bytearray()
    for _ in range(2 * _WORD_BYTES):
        state = (state * 214013 + 2531011) & 0xFFFFFFFF
        drawn.append(state >> 16 & 0xFF)
    return bytes(drawn)


def _siphash(data: bytes, key0: int, key1: int) -> int:
    i0, i1, i2, i3 = _INITIAL
    state = (i0 ^ key0, i1 ^ key1, i2 ^ key0, i3 ^ key1)
    whole = len(data) // _WORD_BYTES * _WORD_BYTES
    for start in range(0, whole, _WORD_BYTES):
        state = _absorb(state, int.from_bytes(data[start : start + _WORD_BYTES], "little"))
    last = len(data) << 56 & _MASK | int.from_bytes(data[whole:], "little")
    v0, v1, v2, v3 = _absorb(state, last)
    state = (v0, v1, v2 ^ 0xFF, v3)
    for _ in range(_FINAL_ROUNDS):
        state = _round(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _absorb(state: _State, word: int) -> _State:
    state = (state[0], state[1], state[2], state[3] ^ word)
    for _ in range(_WORD_ROUNDS):
        state = _round(state)
    return (state[0] ^ word, state[1], state[2], state[3])


def _round(state: _State) -> _State:
    v0, v1, v2, v3 = state
    v0 = v0 + v1 & _MASK
    v1 = _turn(v1, 13) ^ v0
    v0 = _turn(v0, 32)
    v2 = v2 + v3 & _MASK
    v3 = _turn(v3, 16) ^ v2
    v0 = v0 + v3 & _MASK
    v3 = _turn(v3, 21) ^ v0
    v2 = v2 + v1 & _MASK
    v1 = _turn(v1, 17) ^ v2
    v2 = _turn(v2, 32)
    return (v0, v1, v2, v3)


def _turn(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK
