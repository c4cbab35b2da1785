"""From an engine's block names to block keys. Pure.

Keys are computed from the token ids that an event carries, so it does not matter which hash the
engine uses. Its own hash is remembered only to know what a removal names (docs/adr/0001).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import field
from itertools import chain
from types import MappingProxyType
from typing import Any

from gateway.engines import vllm
from gateway.kvevents.decode import AllCleared, BlocksRemoved, BlocksStored, Event, Handle
from gateway.kvevents.handles import KeyByHandle
from gateway.kvevents.orphans import Orphans
from routing.hashing import TOKEN_BYTES, HashSpec, block_keys
from routing.types import BlockKey, Tier
from routing.value import value

# Blocks that one change has at most: about 0.4 ms of work, so that a slice can end in between.
MAX_CHANGE_BLOCKS = 128
# Batches within which a second store of a prompt's beginning can be a copy. Of two requests that
# begin side by side, both have filled their first block within a few steps.
COPY_BATCHES = 64
# Of so many blocks at most, or they would be a tenth of all memory.
_MAX_NEW_BEGINNINGS = 2048


@value
class Stored:
    """The replica now holds these blocks.

    Attributes:
        parents: By block the one before it in its prompt, None where it begins one; empty where
            the replica holds them in another tier already.
    """

    keys: Sequence[BlockKey]
    tier: Tier
    parents: Sequence[BlockKey | None] = field(default=(), compare=False)


@value
class Removed:
    """The replica no longer holds these blocks in this tier."""

    keys: Sequence[BlockKey]
    tier: Tier


@value
class Cleared:
    """The replica holds nothing any more; `keys` is what it held."""

    keys: Iterable[BlockKey]


Change = Stored | Removed | Cleared

_TIER_BY_MEDIUM = MappingProxyType(
    {vllm.MEDIUM_GPU: Tier.L0, vllm.MEDIUM_CPU: Tier.L1, vllm.MEDIUM_STORAGE: Tier.L2}
)


class Translator:
    """Turns one replica's events into changes of the index.

    A key counts as held as long as any physical copy of its block is there: two requests may have
    computed it side by side, and the engine may have two names for it, as what it hashes is more
    than what makes a key (docs/adr/0025).

    Args:
        model: The model's name in block keys.
        max_blocks: Blocks remembered at most, over all tiers; further ones are skipped.
        held: Returns which of some keys the index has for this replica in a tier. Two names of
            one key are told by it: a second set of all keys would double the memory.

    Attributes:
        skipped: How many blocks were left out, by reason.
        num_adopted: Blocks whose parent came after them.
        block_size: Tokens a block of the last event in GPU memory; None before the first one.
        reports_hits: Whether the engine was seen to store again what it holds
            (kv_cache_report_mode=full).
    """

    def __init__(
        self,
        model: str,
        max_blocks: int,
        held: Callable[[Sequence[BlockKey], Tier], Set[BlockKey]],
    ) -> None:
        self._model = model
        self._last_spec = HashSpec(model, block_size=1)
        self._max_blocks = max_blocks
        self._held = held
        self._key_by_handle: dict[Tier, KeyByHandle] = {tier: KeyByHandle() for tier in Tier}
        # Few blocks have copies or second names, so these are kept apart.
        self._extra_copies: Counter[tuple[Tier, Handle]] = Counter()
        self._extra_names: Counter[tuple[Tier, BlockKey]] = Counter()
        # Those that a report of hits would look the same as, until one is seen to be a report.
        self._beginning_copies: Counter[tuple[Tier, Handle]] = Counter()
        self._beginnings: deque[list[Handle]] = deque([[]])
        self._new_beginnings: set[Handle] = set()
        self._prefix_groups: set[int] = set()
        self._orphans = Orphans()
        self.skipped: Counter[str] = Counter()
        self.num_adopted = 0
        self.block_size: int | None = None
        self.reports_hits = False

    @property
    def num_blocks(self) -> int:
        """Blocks remembered, over all tiers."""
        return sum(map(len, self._key_by_handle.values()))

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks remembered in GPU memory."""
        return len(self._key_by_handle[Tier.L0])

    @property
    def num_orphans(self) -> int:
        """Blocks that wait for their parent."""
        return self._orphans.num_blocks

    def begin_batch(self) -> None:
        """Note that the events from here on are of another engine step."""
        while len(self._beginnings) >= COPY_BATCHES or (
            len(self._new_beginnings) > _MAX_NEW_BEGINNINGS
        ):
            self._new_beginnings.difference_update(self._beginnings.popleft())
        self._beginnings.append([])

    def apply(self, event: Event, now: float) -> Iterator[Change]:
        """Yield what an event changes in the index, to be applied there one by one.

        Args:
            event: The next one.
            now: Monotonic seconds.
        """
        match event:
            case BlocksStored():
                return self._store(event, now)
            case BlocksRemoved():
                return self._remove(event)
            case AllCleared():
                return iter((self.clear(),))

    def clear(self) -> Cleared:
        """Forget everything; the change names what was held."""
        held = self._key_by_handle
        self._key_by_handle = {tier: KeyByHandle() for tier in Tier}
        self._extra_copies.clear()
        self._extra_names.clear()
        self._beginning_copies.clear()
        self._beginnings = deque([[]])
        self._new_beginnings.clear()
        self._orphans.clear()
        self.reports_hits = False
        # Not a list: 400,000 keys would take 15 ms here, and the sweep takes them bit by bit.
        return Cleared(chain.from_iterable(keys.values() for keys in held.values()))

    def _store(self, event: BlocksStored, now: float) -> Iterator[Change]:
        tier = _tier(event.medium)
        problem = self._problem(event)
        if tier is None or problem is not None:
            self.skipped[problem or "medium"] += len(event.hashes)
            return
        if event.group is not None:
            self._prefix_groups.add(event.group)
        if not event.packed_tokens:
            yield from self._copy(event.hashes, tier)
            return
        if event.parent is not None and self._key(event.parent) is None:
            self.skipped["orphan"] += len(event.hashes)
            self._orphans.put(event, tier, now)
            return
        yield from self._record(event, tier, frozenset())
        if self._orphans:
            yield from self._adopt(event.hashes, now)

    def _problem(self, event: BlocksStored) -> str | None:
        # Before 0.22 only the group's number tells; the first one has full attention.
        is_first_group = not event.group
        if event.spec_kind not in vllm.PREFIX_SPEC_KINDS or not (event.spec_kind or is_first_group):
            return "no_prefix_group"  # sliding windows and state spaces skip blocks
        num_tokens = len(event.packed_tokens) // TOKEN_BYTES
        if num_tokens != event.block_size * len(event.hashes) and num_tokens:
            return "token_count"
        if self.num_blocks + len(event.hashes) > self._max_blocks:
            return "max_blocks"
        return None

    def _record(
        self, event: BlocksStored, tier: Tier, gone: Set[Handle]
    ) -> Iterator[Stored | Removed]:
        """Record a run whose parent is known; of `gone`, the keys only lead to those behind."""
        salt, extras = _extras(event)
        spec = self._spec_of(event.block_size, event.lora_name or "", salt)
        if tier is Tier.L0:
            self.block_size = event.block_size
        parent = None if event.parent is None else self._key(event.parent)
        step = event.block_size * TOKEN_BYTES
        for start in range(0, len(event.hashes), MAX_CHANGE_BLOCKS):
            end = start + MAX_CHANGE_BLOCKS
            own = {number - start: extra for number, extra in extras.items() if number >= start}
            packed = event.packed_tokens[start * step : end * step]
            keys = block_keys(packed, spec, parent=parent, extras=own)
            parents = [parent, *keys[:-1]]
            parent = keys[-1]
            named = list(zip(event.hashes[start:end], keys, strict=True))
            if gone:
                left = [n for n, (handle, _) in enumerate(named) if handle not in gone]
                named, parents = [named[n] for n in left], [parents[n] for n in left]
            yield from self._note(named, tier, parents, is_first=event.parent is None)

    def _spec_of(self, block_size: int, lora: str, salt: str) -> HashSpec:
        """Return what separates blocks: mostly as before, and to make it takes as long as a key."""
        last = self._last_spec
        if (block_size, lora, salt) != (last.block_size, last.lora, last.cache_salt):
            last = self._last_spec = HashSpec(self._model, block_size, lora, salt)
        return last

    def _note(
        self,
        named: Sequence[tuple[Handle, BlockKey]],
        tier: Tier,
        parents: Sequence[BlockKey | None],
        *,
        is_first: bool,
    ) -> Iterator[Stored | Removed]:
        """Remember blocks by their names; `is_first` where they begin a prompt."""
        known = self._key_by_handle[tier]
        fresh: list[tuple[Handle, BlockKey]] = []
        known_keys = known.get_all([handle for handle, _ in named])
        for (handle, key), before in zip(named, known_keys, strict=True):
            if before is None:
                fresh.append((handle, key))
            elif before == key:
                self._note_again(handle, tier, is_first=is_first)
            else:  # the name means another block now: removals that we never got
                for copies in (self._extra_copies, self._beginning_copies):
                    copies.pop((tier, handle), None)
                yield from self._drop([handle], tier)
                fresh.append((handle, key))
        keys = [key for _, key in fresh]
        for key in self._held(keys, tier):
            self._extra_names[tier, key] += 1
        known.add(dict(fresh).items())  # a name that comes twice counts once
        if is_first:
            handles = [handle for handle, _ in fresh]
            self._beginnings[-1] += handles
            self._new_beginnings.update(handles)
        yield Stored([key for _, key in named], tier, parents)

    def _note_again(self, handle: Handle, tier: Tier, *, is_first: bool) -> None:
        """Count a further copy of a block, unless the engine just says again that it has it.

        Behind a parent it is always a copy. At the beginning of a prompt it can be one only while
        the first one is new, as a request that comes later finds that one; and where an engine was
        seen to report what it found, it is none.
        """
        if not is_first:
            self._extra_copies[tier, handle] += 1
            return
        if handle not in self._new_beginnings:
            self.reports_hits = True
            self._beginning_copies.clear()
        if not self.reports_hits:
            self._beginning_copies[tier, handle] += 1

    def _copy(self, handles: Sequence[Handle], tier: Tier) -> Iterator[Stored | Removed]:
        """Record that known blocks are in another tier now; an offload tells no token ids."""
        known = self._key_by_handle[tier]
        named = []
        for handle in handles:
            key = self._key(handle)
            if key is None:
                self.skipped["unknown_hash"] += 1
            elif known.get(handle) is None:
                named.append((handle, key))
        if named:
            yield from self._note(named, tier, (), is_first=False)

    def _adopt(self, parents: Sequence[Handle], now: float) -> Iterator[Change]:
        orphans = self._orphans.take(parents, now)
        while orphans:
            orphan = orphans.pop()
            event = orphan.event
            if event.parent is None or self._key(event.parent) is None:
                continue  # the bound, or the parent went while its own parent was awaited
            self.num_adopted += len(event.hashes)
            yield from self._record(event, orphan.tier, orphan.gone)
            orphans += self._orphans.take(event.hashes, now)

    def _key(self, handle: Handle) -> BlockKey | None:
        for keys in self._key_by_handle.values():
            key = keys.get(handle)
            if key is not None:
                return key
        return None

    def _remove(self, event: BlocksRemoved) -> Iterator[Removed]:
        tier = _tier(event.medium)
        # One name may mean a block of each group; only those of prefix groups were recorded.
        if tier is not None and (event.group is None or event.group in self._prefix_groups):
            yield from self._drop(event.hashes, tier)

    def _drop(self, handles: Sequence[Handle], tier: Tier) -> Iterator[Removed]:
        known = self._key_by_handle[tier]
        gone = []
        for handle in handles:
            copy = (tier, handle)
            if _take_one(self._extra_copies, copy) or _take_one(self._beginning_copies, copy):
                continue
            key = known.pop(handle)
            if key is None:
                self._orphans.remove(handle)
            elif not _take_one(self._extra_names, (tier, key)):
                gone.append(key)
        if gone:
            yield Removed(gone, tier)


def _take_one(counter: Counter[Any], item: Any) -> bool:
    """Take one off a count; False where there is none."""
    if item not in counter:
        return False
    counter[item] -= 1
    if not counter[item]:
        del counter[item]
    return True


def _tier(medium: str | None) -> Tier | None:
    return Tier.L0 if medium is None else _TIER_BY_MEDIUM.get(medium.lower())


def _extras(event: BlocksStored) -> tuple[str, dict[int, bytes]]:
    """Return the cache salt and, by block number, what else separates blocks.

    vLLM lists, for each block, the LoRA name, then media, then in block 0 the salt. Whatever is
    not the LoRA name (told apart by `lora_name`) nor the salt is kept as it is: a prompt that
    does not have it then never matches.
    """
    salt = ""
    extras: dict[int, bytes] = {}
    for number, entry in enumerate(event.extra_keys or ()):
        parts: list[Any] = list(entry) if entry else []
        if parts and event.lora_name is not None and parts[0] == event.lora_name:
            parts = parts[1:]
        if number == 0 and event.parent is None and parts and isinstance(parts[-1], str):
            salt = parts.pop()
        if parts:
            extras[number] = repr(parts).encode()
    return salt, extras
