"""The GPU cache of a model replica: whose blocks are where, and what to report about it."""

from routing.lab.block_chain import extend_keys, published_hash, published_hashes
from routing.lab.block_pool import BlockPool
from routing.lab.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from routing.lab.sequence import SequenceState


class KvCache:
    """Blocks of sequences over a BlockPool, with promises for prefills that are under way.

    Without the promises two long prompts could each take half of the memory and wait for the other
    half for ever.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_seed: int, *, events: bool) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self._hash_seed = hash_seed
        self._report = events
        self._events: list[KvEvent] = []
        self._promised_blocks = 0

    def admit(self, sequence: SequenceState, end: int) -> bool:
        """Give a waiting sequence its cached prefix, before block `end`, if the rest will fit.

        The rest, up to the last known token, is promised to it.

        Returns:
            False, with nothing done, if there is no room.
        """
        hit = self.pool.match(sequence.keys, end)
        wanted = -(-sequence.known // self.block_size) - len(hit)
        free = self.pool.num_free - self.pool.num_unused(hit) - self._promised_blocks
        if wanted > free:
            return False
        self.pool.acquire(hit)
        sequence.blocks = hit
        sequence.registered = sequence.stored = len(hit)
        sequence.computed = len(hit) * self.block_size
        sequence.promised = wanted
        self._promised_blocks += wanted
        return True

    def has_room(self, sequence: SequenceState, num_tokens: int) -> bool:
        """Tell whether the sequence can compute `num_tokens` more."""
        missing = sequence.computed + num_tokens - len(sequence.blocks) * self.block_size
        return missing <= 0 or -(-missing // self.block_size) <= self.pool.num_free

    def grow(self, sequence: SequenceState, count: int) -> None:
        """Take `count` more blocks, at the cost of what they cached."""
        blocks, evicted = self.pool.allocate(count)
        sequence.blocks += blocks
        used = min(count, sequence.promised)
        sequence.promised -= used
        self._promised_blocks -= used
        if self._report:
            seed = self._hash_seed
            self._events += [BlockRemoved(published_hash(key, seed)) for key in evicted]

    def register(self, sequence: SequenceState, end: int) -> None:
        """Enter the sequence's blocks before `end` into the prefix cache."""
        start, size = sequence.registered, self.block_size
        extend_keys(sequence.keys, sequence.root, sequence.tokens, size, end)
        keys = sequence.keys[start:end]
        self.pool.register(sequence.blocks[start:end], keys)
        sequence.registered = end
        if not self._report:
            return
        parent = published_hash(sequence.keys[start - 1], self._hash_seed) if start else None
        self._events.append(
            BlockStored(
                block_hashes=published_hashes(keys, self._hash_seed),
                parent_hash=parent,
                token_ids=tuple(sequence.tokens[start * size : end * size]),
                cache_salt=sequence.cache_salt,
                lora_name=sequence.lora_name,
            )
        )

    def release(self, sequence: SequenceState) -> None:
        """Let go of everything that the sequence holds or was promised."""
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        self._promised_blocks -= sequence.promised
        sequence.promised = 0

    def clear(self) -> bool:
        """Forget all cached blocks; False, with nothing done, while a sequence holds any."""
        if not self.pool.clear():
            return False
        if self._report:
            self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KvEvent]:
        """Return what changed since the last call, in order."""
        events, self._events = self._events, []
        return events
