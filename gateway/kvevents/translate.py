"""From an engine's block names to block keys. Pure.

Keys are computed from the token ids that an event carries, so it does not matter which hash the
engine uses. Its own hash is remembered only to know what a removal names (docs/adr/0001).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.engines import vllm
from gateway.kvevents.decode import AllCleared, BlocksRemoved, BlocksStored, EngineHash, Event
from routing.hashing import TOKEN_BYTES, HashSpec, block_keys
from routing.types import BlockKey, Tier


@dataclass(frozen=True, slots=True)
class Stored:
    """The replica now holds these blocks."""

    keys: Sequence[BlockKey]
    tier: Tier


@dataclass(frozen=True, slots=True)
class Removed:
    """The replica no longer holds these blocks in this tier."""

    keys: Sequence[BlockKey]
    tier: Tier


@dataclass(frozen=True, slots=True)
class Cleared:
    """The replica holds nothing any more; `keys` is what it held."""

    keys: Iterable[BlockKey]


Change = Stored | Removed | Cleared

_TIER_BY_MEDIUM = (
    (vllm.MEDIUM_GPU, Tier.L0),
    (vllm.MEDIUM_CPU, Tier.L1),
    (vllm.MEDIUM_STORAGE, Tier.L2),
)


class Translator:
    """Turns one replica's events into changes of the index.

    Args:
        model: The model's name in block keys.
        max_blocks: Blocks remembered at most, over all tiers; further ones are skipped.

    Attributes:
        skipped: How many blocks were left out, by reason.
    """

    def __init__(self, model: str, max_blocks: int) -> None:
        self._model = model
        self._max_blocks = max_blocks
        self._key_by_hash: dict[Tier, dict[EngineHash, BlockKey]] = {tier: {} for tier in Tier}
        # An engine may hold one block twice (two requests computed it at once); it then stores it
        # twice and removes one copy at a time. Few blocks have copies, so they are kept apart.
        self._extra_copies: Counter[tuple[Tier, EngineHash]] = Counter()
        self.skipped: Counter[str] = Counter()

    @property
    def num_blocks(self) -> int:
        """Blocks remembered, over all tiers."""
        return sum(len(keys) for keys in self._key_by_hash.values())

    def apply(self, event: Event) -> Change | None:
        """Return what an event changes in the index; None where it changes nothing."""
        match event:
            case BlocksStored():
                return self._store(event)
            case BlocksRemoved():
                return self._remove(event)
            case AllCleared():
                return self.clear()

    def clear(self) -> Cleared:
        """Forget everything; the change names what was held."""
        held, self._key_by_hash = self._key_by_hash, {tier: {} for tier in Tier}
        self._extra_copies.clear()
        return Cleared([key for keys in held.values() for key in keys.values()])

    def _store(self, event: BlocksStored) -> Stored | None:
        tier = _tier(event.medium)
        problem = self._problem(event, tier)
        if tier is None or problem is not None:
            self.skipped[problem or "medium"] += len(event.hashes)
            return None
        parent = None
        if event.parent is not None:
            parent = self._parent_key(event.parent)
            if parent is None:  # an orphan is never re-rooted: its prefix could be anybody's
                self.skipped["orphan"] += len(event.hashes)
                return None
        keys = self._keys(event, parent)
        known = self._key_by_hash[tier]
        for engine_hash, key in zip(event.hashes, keys, strict=True):
            if engine_hash in known:
                self._extra_copies[tier, engine_hash] += 1
            known[engine_hash] = key
        return Stored(keys, tier)

    def _problem(self, event: BlocksStored, tier: Tier | None) -> str | None:
        if tier is None:
            return "medium"
        if event.spec_kind not in vllm.PREFIX_SPEC_KINDS:
            return "no_prefix_group"  # sliding windows and state spaces skip blocks
        num_tokens = len(event.packed_tokens) // TOKEN_BYTES
        if event.block_size < 1 or num_tokens != event.block_size * len(event.hashes):
            return "token_count"
        if self.num_blocks + len(event.hashes) > self._max_blocks:
            return "max_blocks"
        return None

    def _keys(self, event: BlocksStored, parent: BlockKey | None) -> list[BlockKey]:
        salt, extras = _extras(event)
        spec = HashSpec(self._model, event.block_size, event.lora_name or "", salt)
        return block_keys(event.packed_tokens, spec, parent=parent, extras=extras)

    def _parent_key(self, engine_hash: EngineHash) -> BlockKey | None:
        found = (keys.get(engine_hash) for keys in self._key_by_hash.values())
        return next((key for key in found if key is not None), None)

    def _remove(self, event: BlocksRemoved) -> Removed | None:
        tier = _tier(event.medium)
        if tier is None:
            return None
        gone = []
        for engine_hash in event.hashes:
            copy = (tier, engine_hash)
            if copy in self._extra_copies:
                self._extra_copies[copy] -= 1
                if not self._extra_copies[copy]:
                    del self._extra_copies[copy]
                continue
            key = self._key_by_hash[tier].pop(engine_hash, None)
            if key is not None:
                gone.append(key)
        return Removed(gone, tier) if gone else None


def _tier(medium: str | None) -> Tier | None:
    word = vllm.MEDIUM_GPU if medium is None else medium.lower()
    return next((tier for name, tier in _TIER_BY_MEDIUM if word == name), None)


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
