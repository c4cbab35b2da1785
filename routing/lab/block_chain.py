"""Keys of the model engine's blocks: each names a block and its whole prefix.

These are the model's own, as an engine's hashes are its own. A gateway must not be able to read
them, so they share nothing with routing.hashing.
"""

from array import array
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

_TOKEN_BYTES = array("I").itemsize
_MASK_64 = (1 << 64) - 1
# Any odd number makes the multiplication a bijection; this one is 2**64 / golden ratio.
_ODD = 0x9E3779B97F4A7C15


def chain_root(cache_salt: str | None, lora_name: str | None) -> int:
    """Return the key before the first block; it differs for every salt and adapter."""
    return xxh3_64_intdigest(repr((cache_salt, lora_name)).encode())


def extend_keys(
    keys: list[int], root: int, tokens: "array[int]", block_size: int, end: int
) -> None:
    """Append the keys of the blocks from len(keys) up to block `end`.

    Args:
        keys: Keys of the blocks so far, extended in place.
        root: What chain_root returned for this sequence.
        tokens: At least `end * block_size` token ids.
        block_size: Tokens a block.
        end: Number of blocks that shall have a key.
    """
    data = memoryview(tokens).cast("B")
    step = block_size * _TOKEN_BYTES
    parent = keys[-1] if keys else root
    for start in range(len(keys) * step, end * step, step):
        parent = xxh3_64_intdigest(data[start : start + step], parent)
        keys.append(parent)


def published_hash(key: int, seed: int) -> int:
    """Return the 64-bit hash under which a replica with this seed reports a block."""
    return ((key ^ seed) * _ODD) & _MASK_64


def published_hashes(keys: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return published_hash of every key."""
    return tuple([((key ^ seed) * _ODD) & _MASK_64 for key in keys])
