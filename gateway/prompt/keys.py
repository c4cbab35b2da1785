"""Block keys of prompts: a new turn of a long chat hashes its own blocks only."""

from __future__ import annotations

from array import array
from typing import cast

from xxhash import xxh3_128_digest

from gateway.prompt.bytecache import ByteCache
from routing.hashing import TOKEN_BYTES, HashSpec, block_keys
from routing.types import BlockKey

# Keys are kept by pages of so many blocks. Larger pages take less memory for their names and leave
# more to hash after the last full one: 127 blocks take 25 us, and a page of 128 keys 1.3 KiB.
PAGE_BLOCKS = 128


class BlockKeys:
    """Computes block keys, and keeps those of whole pages of a prompt.

    A page is named by the key before it, which says all about its prefix, and by its token ids. So
    chats with a common beginning share its pages, and a change in the middle changes all names
    behind it.

    Args:
        cache: Where pages are kept.
    """

    def __init__(self, cache: ByteCache) -> None:
        self._cache = cache

    def of(self, packed: bytes, spec: HashSpec) -> list[BlockKey]:
        """Return what `routing.hashing.block_keys` does, for a prompt from its beginning."""
        page_bytes = PAGE_BLOCKS * spec.block_size * TOKEN_BYTES
        keys: list[BlockKey] = []
        parent = spec.root
        start = 0
        view = memoryview(packed)
        while start + page_bytes <= len(packed):
            keys += self._page(view[start : start + page_bytes], spec, parent)
            parent = keys[-1]
            start += page_bytes
        return keys + block_keys(packed[start:], spec, parent=parent)

    def _page(self, page: memoryview, spec: HashSpec, parent: int) -> list[BlockKey]:
        name = xxh3_128_digest(page, parent) + parent.to_bytes(8, "little")
        kept = self._cache.get(name)
        if kept is None:
            keys = block_keys(bytes(page), spec, parent=parent)
            self._cache.put(name, array("Q", keys).tobytes())
            return keys
        unpacked = array("Q")
        unpacked.frombytes(kept)
        return cast("list[BlockKey]", unpacked.tolist())
