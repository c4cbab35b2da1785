"""Token ids to chained block keys.

A block key names one full block of token ids and its whole prefix, so two prompts share a key
exactly when they share everything up to that block's end: tokens, model, LoRA adapter, cache salt
and media. Keys are ours alone: reads compute them from the prompt, writes from the token ids that
a KV event carries, so neither the engine's hash algorithm nor its seed has to match
(docs/adr/0001).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from xxhash import xxh3_64_intdigest

from routing.types import BlockKey

# vLLM's token ids fit 32 bits: the largest vocabularies have a few hundred thousand entries.
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class HashSpec:
    """What separates caches of equal token ids.

    Attributes:
        model: Served model name.
        block_size: Tokens a block, as the replica's engine has it.
        lora: LoRA adapter name; empty for the base model.
        cache_salt: vLLM's `cache_salt`; empty for none.
    """

    model: str
    block_size: int
    lora: str = ""
    cache_salt: str = ""
    root: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Derive the chain's root key.

        Raises:
            ValueError: `block_size` is below 1.
        """
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")
        object.__setattr__(self, "root", _root_key(self))


def _root_key(spec: HashSpec) -> int:
    # Every part is preceded by its length, so no LoRA name can be read as a salt.
    # Salts come from JSON, which may hold lone surrogates.
    names = (spec.model, spec.lora, spec.cache_salt)
    parts = [name.encode(errors="surrogatepass") for name in names]
    tagged = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return int(xxh3_64_intdigest(tagged, spec.block_size))


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Return token ids as packed native-endian uint32, the form that `block_keys` hashes.

    Raises:
        OverflowError: A token id is negative or does not fit 32 bits.
    """
    return array("I", token_ids).tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """Return the token ids that `pack_tokens` packed."""
    ids = array("I")
    ids.frombytes(packed)
    return ids.tolist()


def block_keys(
    packed: bytes,
    spec: HashSpec,
    *,
    parent: int | None = None,
    extras: Mapping[int, bytes] | None = None,
) -> list[BlockKey]:
    """Return the keys of the full blocks of a prompt, or of a run of blocks inside one.

    Args:
        packed: Token ids as `pack_tokens` makes them; a trailing partial block is left out.
        spec: Model, block size, LoRA and salt.
        parent: Key of the block before the first one; None at the start of a prompt.
        extras: By block number: what else separates that block (media identifiers).

    Returns:
        One key a full block, in order.
    """
    step = spec.block_size * TOKEN_BYTES
    key = spec.root if parent is None else parent
    keys: list[int] = []
    # Bound to locals: this loop runs once a block, 2,000 times for a 32k-token prompt.
    append, digest = keys.append, xxh3_64_intdigest
    for start in range(0, len(packed) - step + 1, step):
        block = packed[start : start + step]
        if extras and (extra := extras.get(start // step)):
            block += extra
        key = digest(block, key)
        append(key)
    return cast("list[BlockKey]", keys)  # the type's constructor would take longer than the hash


def max_matched_blocks(num_prompt_tokens: int, block_size: int) -> int:
    """Return how many leading blocks of a prompt a cache can serve at most.

    The engine always computes the last token, so a hit never covers the whole prompt.

    Source:
        vLLM v1, `KVCacheManager.get_computed_blocks`: max_cache_hit_length = num_tokens - 1.
    """
    return max(0, num_prompt_tokens - 1) // block_size
