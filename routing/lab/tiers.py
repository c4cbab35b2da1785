"""Cache tiers behind the GPU: host memory (L1), a shared pool (L2), the pipe they load through."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from routing.lab.engine_profile import EngineProfile
from routing.lab.sequence import SequenceState


class TierPool:
    """Least-recently-used set of block keys: one replica's L1, or an L2 given to several models."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def leading_run(self, keys: Sequence[int], start: int, end: int) -> int:
        """Return how many keys from `start` on, and before `end`, are held without a gap."""
        held = self._keys
        at = start
        while at < end and keys[at] in held:
            at += 1
        return at - start

    def store(self, keys: Sequence[int]) -> None:
        """Hold these keys, given in prompt order, and mark them as just used.

        The last key becomes the oldest of them, so that a prompt loses its end first, as LMCache
        orders the keys of one request.
        """
        held = self._keys
        for key in reversed(keys):
            held[key] = None
            held.move_to_end(key)
        while len(held) > self.capacity_blocks:
            held.popitem(last=False)

    def clear(self) -> None:
        """Drop everything."""
        self._keys.clear()


class FarTier(Protocol):
    """A tier that looks at a sequence's tokens, as a directory of files that they name does."""

    def leading_run(self, sequence: SequenceState, start: int, end: int) -> int:
        """Return how many blocks from `start` on, and before `end`, are held without a gap."""

    def store(self, sequence: SequenceState, first: int, end: int) -> None:
        """Hold the blocks from `first` on and before `end`."""

    def clear(self) -> None:
        """Drop everything."""


class PooledTier:
    """A `FarTier` that keeps block keys in a pool."""

    def __init__(self, pool: TierPool) -> None:
        self._pool = pool

    def leading_run(self, sequence: SequenceState, start: int, end: int) -> int:
        """Return how many blocks are held without a gap."""
        return self._pool.leading_run(sequence.keys, start, end)

    def store(self, sequence: SequenceState, first: int, end: int) -> None:
        """Hold blocks."""
        self._pool.store(sequence.keys[first:end])

    def clear(self) -> None:
        """Drop everything."""
        self._pool.clear()


class LoadPipe:
    """One replica's way to its tiers: loads go through one after the other.

    Args:
        overlap: Whether a load waits out its latency while others are in the pipe.
    """

    def __init__(self, *, overlap: bool = False) -> None:
        self._overlap = overlap
        self._free_at = 0.0

    def enqueue(self, now: float, load_s: float, latency_s: float = 0.0) -> float:
        """Return the time at which a load that is asked for now will have landed.

        Args:
            now: Seconds.
            load_s: How long the load takes by itself.
            latency_s: The part of it in which no bytes move.
        """
        if self._overlap:
            now, load_s = now + latency_s, load_s - latency_s
        self._free_at = max(now, self._free_at) + load_s
        return self._free_at


class LoadPlan(NamedTuple):
    """What to load behind the GPU hit: first `l1_blocks`, then `l2_blocks`."""

    l1_blocks: int
    l2_blocks: int
    load_s: float
    latency_s: float = 0.0  # the part of `load_s` in which no bytes move

    @property
    def num_blocks(self) -> int:
        """Blocks to load in all."""
        return self.l1_blocks + self.l2_blocks


def plan_load(
    profile: EngineProfile, block_size: int, start: int, l1_run: int, l2_run: int
) -> LoadPlan:
    """Choose between computing, loading from L1, and loading from L1 and then L2.

    A tier is used only where that is the cheaper way, without regard to who waits in the pipe;
    or always, as the profile says.

    Args:
        profile: Times of steps and tiers.
        block_size: Tokens a block.
        start: Blocks that the GPU holds.
        l1_run: Blocks from `start` on that L1 holds.
        l2_run: Blocks from `start + l1_run` on that L2 holds.
    """
    start_tokens, l1_tokens, l2_tokens = (n * block_size for n in (start, l1_run, l2_run))
    l1_s = profile.l1.load_s(l1_tokens)
    l2_s = profile.l2.load_s(l2_tokens)
    l1_latency_s = profile.l1.latency_s if l1_run else 0.0
    l2_latency_s = profile.l2.latency_s if l2_run else 0.0
    both = LoadPlan(l1_run, l2_run, l1_s + l2_s, l1_latency_s + l2_latency_s)
    if profile.always_loads:
        return both
    options = (
        (profile.step.prefill_s(start_tokens, l1_tokens + l2_tokens), LoadPlan(0, 0, 0.0)),
        (
            l1_s + profile.step.prefill_s(start_tokens + l1_tokens, l2_tokens),
            LoadPlan(l1_run, 0, l1_s, l1_latency_s),
        ),
        (l1_s + l2_s, both),
    )
    return min(options, key=lambda option: option[0])[1]


class Tiers:
    """L1 and L2 as one replica sees them; either may be missing."""

    def __init__(
        self,
        profile: EngineProfile,
        block_size: int,
        l1: TierPool | None,
        l2: TierPool | FarTier | None,
    ) -> None:
        self._profile = profile
        self._block_size = block_size
        self._l1 = None if l1 is None else PooledTier(l1)
        self._l2 = PooledTier(l2) if isinstance(l2, TierPool) else l2
        self._pools = [pool for pool in (self._l1, self._l2) if pool is not None]
        self._pipe = LoadPipe(overlap=profile.loads_overlap)

    def __bool__(self) -> bool:
        return bool(self._pools)

    def find_load(self, sequence: SequenceState, end: int) -> LoadPlan:
        """Return what is worth loading behind the blocks that the sequence holds, before `end`."""
        start = len(sequence.blocks)
        l1_run = self._l1.leading_run(sequence, start, end) if self._l1 is not None else 0
        l2_run = self._l2.leading_run(sequence, start + l1_run, end) if self._l2 is not None else 0
        return plan_load(self._profile, self._block_size, start, l1_run, l2_run)

    def begin_load(self, load: LoadPlan, now: float) -> float:
        """Send a load through the pipe; return the time at which it lands."""
        return self._pipe.enqueue(now, load.load_s, load.latency_s)

    def store(self, sequence: SequenceState, *, prefill_ends: bool) -> None:
        """Write blocks through that a sequence has computed or loaded.

        At the end of the prefill the whole prompt is marked as used, as LMCache does at its lookup.
        """
        end = sequence.registered
        if not self._profile.store_output_blocks:
            end = min(end, sequence.num_prompt // self._block_size)
        first = 0 if prefill_ends else sequence.stored
        sequence.stored = sequence.registered
        if first < end:
            for pool in self._pools:
                pool.store(sequence, first, end)

    def clear(self) -> None:
        """Empty both tiers, the shared one too."""
        for pool in self._pools:
            pool.clear()
