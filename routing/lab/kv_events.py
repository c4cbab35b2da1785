"""Changes of a replica's GPU cache, as an engine reports them.

Hashes are opaque 64-bit unsigned integers: equal within one replica's life, unrelated between two.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Full blocks of one sequence came into the cache.

    Attributes:
        block_hashes: One a block, in prompt order.
        parent_hash: Hash of the block before the first one; None at the start of a prompt.
        token_ids: The tokens of exactly these blocks.
        cache_salt: Salt that separates this chain from others, as the request gave it.
        lora_name: Adapter that separates this chain from others.
    """

    block_hashes: tuple[int, ...]
    parent_hash: int | None
    token_ids: tuple[int, ...]
    cache_salt: str | None = None
    lora_name: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of one block left the cache.

    Two copies exist after two sequences filled the same block side by side; as in vLLM each copy
    is stored and removed on its own.
    """

    block_hash: int


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache is empty."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
