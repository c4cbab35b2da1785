"""The GPU blocks of a model replica: reference counts, prefix cache, eviction order.

Follows vLLM's block pool: a block that nobody uses stays in the cache until its memory is needed;
blocks are reused in the order in which they were let go; the same content may sit in two blocks.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """A fixed number of blocks, named 0..num_blocks-1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # From the next block to reuse to the last one.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._refs = [0] * num_blocks
        self._key_by_block: list[int | None] = [None] * num_blocks
        self._block_by_key: dict[int, int] = {}
        # Further blocks with a key that _block_by_key has already, oldest first. Rare.
        self._copies_by_key: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses, cached or not."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that some sequence uses."""
        return self.num_blocks - len(self._free)

    def match(self, keys: Sequence[int], limit: int) -> list[int]:
        """Return the blocks of the longest cached prefix of `keys`, at most `limit`."""
        blocks: list[int] = []
        get = self._block_by_key.get
        for key in keys[:limit] if limit < len(keys) else keys:
            block = get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_unused(self, blocks: Iterable[int]) -> int:
        """Return how many of `blocks` would leave the free queue if they were acquired."""
        refs = self._refs
        return sum(1 for block in blocks if refs[block] == 0)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add one user to cached blocks that match() returned."""
        refs, free = self._refs, self._free
        for block in blocks:
            if refs[block] == 0:
                del free[block]
            refs[block] += 1

    def allocate(self, count: int) -> tuple[list[int], list[int]]:
        """Take blocks for new content.

        Returns:
            The blocks, each with one user, and the keys that were evicted for them, in order.

        Raises:
            MemoryError: Fewer than `count` blocks are free.
        """
        if count > len(self._free):
            raise MemoryError(f"{count} blocks wanted, {len(self._free)} free")
        blocks: list[int] = []
        evicted: list[int] = []
        pop, refs, keys = self._free.popitem, self._refs, self._key_by_block
        for _ in range(count):
            block = pop(last=False)[0]
            key = keys[block]
            if key is not None:
                self._forget(block, key)
                evicted.append(key)
            refs[block] = 1
            blocks.append(block)
        return blocks, evicted

    def register(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Enter used blocks into the prefix cache, each under its key."""
        by_key, by_block = self._block_by_key, self._key_by_block
        for block, key in zip(blocks, keys, strict=True):
            by_block[block] = key
            if by_key.setdefault(key, block) != block:
                self._copies_by_key.setdefault(key, []).append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Take one user off the blocks of a sequence, given in prompt order.

        The end of the prompt is reused first, so that what is evicted keeps a warm beginning;
        blocks without a key are of no use to anyone and go to the very front.
        """
        refs, free, keys = self._refs, self._free, self._key_by_block
        for block in reversed(blocks):
            refs[block] -= 1
            if refs[block] == 0:
                free[block] = None
                if keys[block] is None:
                    free.move_to_end(block, last=False)

    def clear(self) -> bool:
        """Forget all cached content; False, and nothing done, while any block is in use."""
        if self.num_used:
            return False
        self._key_by_block = [None] * self.num_blocks
        self._block_by_key.clear()
        self._copies_by_key.clear()
        return True

    def _forget(self, block: int, key: int) -> None:
        self._key_by_block[block] = None
        copies = self._copies_by_key.get(key)
        if copies is None:
            del self._block_by_key[key]
            return
        if self._block_by_key[key] == block:
            self._block_by_key[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies_by_key[key]
