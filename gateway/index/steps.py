"""What requests ask of the embedded map, in steps that hold up nobody.

A prompt of 500,000 tokens has 31,000 blocks of 16, and each takes 0.2 us to look up and as much
again to predict. So it is looked up, predicted and taken back a part at a time, and between two
parts other requests run (docs/adr/0040).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from routing.block_map import BlockMap
from routing.types import BlockKey, PrefixMatch, ReplicaId

# 32,000 tokens in blocks of 16: 0.5 ms, and few prompts are longer.
STEP_BLOCKS = 2048
# Parts that wait: 8 million blocks. Beyond, a long prompt is predicted by its beginning alone, and
# what is not taken back ends by itself.
MAX_WAITING = 4096


class Steps:
    """Looks up, predicts and takes back.

    Args:
        blocks: The map. Whatever else is done to it needs no steps.
        step_blocks: Blocks at a time.
    """

    def __init__(self, blocks: BlockMap, step_blocks: int = STEP_BLOCKS) -> None:
        self._blocks = blocks
        self._step_blocks = step_blocks
        self._waiting: deque[tuple[ReplicaId, Callable[[], object]]] = deque()
        self._turn: asyncio.Handle | None = None

    @property
    def num_waiting(self) -> int:
        """Parts that wait for their turn."""
        return len(self._waiting)

    async def lookup(
        self, keys_by_block_size: Mapping[int, Sequence[BlockKey]], now: float
    ) -> dict[ReplicaId, PrefixMatch]:
        """Return what each replica holds of one prompt; see `PrefixIndex.lookup`."""
        found: dict[ReplicaId, PrefixMatch] = {}
        for block_size, keys in keys_by_block_size.items():
            # Keys of another block size never match: the size is part of the chain's root.
            found |= await self._longest_prefix(keys, block_size, now)
        return found

    async def _longest_prefix(
        self, keys: Sequence[BlockKey], block_size: int, now: float
    ) -> dict[ReplicaId, PrefixMatch]:
        step = self._step_blocks
        if len(keys) <= step:
            return self._blocks.longest_prefix(keys, block_size, now)
        found = self._blocks.longest_prefix(keys[:step], block_size, now)
        for start in range(step, len(keys), step):
            num_tokens = start * block_size
            if all(match.total_tokens < num_tokens for match in found.values()):
                break
            await asyncio.sleep(0)
            further = self._blocks.longest_prefix(keys[start : start + step], block_size, now)
            for replica, match in further.items():
                before = found.get(replica)
                if before is not None and before.total_tokens == num_tokens:
                    found[replica] = _joined(before, match, num_tokens)
        return found

    def predict(
        self,
        replica: ReplicaId,
        keys: Sequence[BlockKey],
        until: float,
        max_blocks: int | None,
    ) -> int:
        """Record a prediction; see `BlockMap.predict`.

        A prompt's beginning counts at once. Of what follows the end comes first and the beginning
        once more at last, as the least recently used of a cache is the end of a prompt.
        """
        predict = self._blocks.predict
        if len(keys) <= self._step_blocks:
            return predict(replica, keys, until, max_blocks)
        num_known = self._blocks.num_predicted(replica, keys)
        parts = self._parts(keys)
        predict(replica, parts[0], until, max_blocks)
        works = [partial(predict, replica, part, until, max_blocks) for part in reversed(parts)]
        self._later(replica, works)
        return num_known

    def withdraw(self, replica: ReplicaId, keys: Sequence[BlockKey], until: float) -> None:
        """Take a prediction back, after all that waits, as it may be part of that."""
        withdraw = self._blocks.withdraw
        if len(keys) <= self._step_blocks and not self._waiting:
            withdraw(replica, keys, until)
            return
        works = [partial(withdraw, replica, part, until) for part in self._parts(keys)]
        self._later(replica, works)

    def forget(self, replica: ReplicaId) -> None:
        """Drop what waits for a replica whose cache was cleared."""
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] != replica)

    def _parts(self, keys: Sequence[BlockKey]) -> list[Sequence[BlockKey]]:
        step = self._step_blocks
        return [keys[start : start + step] for start in range(0, len(keys), step)]

    def _later(self, replica: ReplicaId, works: Sequence[Callable[[], object]]) -> None:
        if len(self._waiting) + len(works) > MAX_WAITING:
            return
        self._waiting.extend((replica, work) for work in works)
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._turn = None
        if self._waiting:
            _, work = self._waiting.popleft()
            self._turn = asyncio.get_running_loop().call_soon(self._work)
            work()


def _joined(before: PrefixMatch, further: PrefixMatch, num_tokens: int) -> PrefixMatch:
    """Return a match that goes on.

    Args:
        before: Of the first `num_tokens`, all of which it has in one tier or another.
        further: Of what follows. It counts for a tier that had all so far.
        num_tokens: Of the prompt, up to which `before` reaches.
    """
    confirmed, l0 = before.confirmed_tokens, before.l0_tokens
    to_l1 = l0 + before.l1_tokens
    if to_l1 == num_tokens:
        to_l1 += further.l0_tokens + further.l1_tokens
    if l0 == num_tokens:
        l0 += further.l0_tokens
    if confirmed == num_tokens:
        confirmed += further.confirmed_tokens
    total = num_tokens + further.total_tokens
    return PrefixMatch(l0, to_l1 - l0, total - to_l1, confirmed)
