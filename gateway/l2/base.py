"""What the gateway asks of a shared pool, whatever tells what is in it.

A new kind is one file, one row in `gateway/l2/pools.py`, and one parameter of the contract suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from routing.hashing import HashSpec, block_keys
from routing.types import BlockKey
from routing.value import value


@value
class Chunks:
    """A prompt as a pool sees it.

    Attributes:
        keys: One a full chunk, ours: block keys with the chunk for a block.
        packed_tokens: Of the whole prompt, packed.
        salt: The request's `cache_salt`.
    """

    keys: Sequence[BlockKey]
    packed_tokens: bytes
    salt: str


@value
class SharedPrefix:
    """What a pool holds of one prompt.

    Attributes:
        chunks: The prompt.
        num_chunks: Leading chunks that are there.
        chunk_tokens: Tokens a chunk.
    """

    chunks: Chunks
    num_chunks: int
    chunk_tokens: int

    @property
    def num_tokens(self) -> int:
        """Leading tokens that are there."""
        return self.num_chunks * self.chunk_tokens


@value
class PoolHealth:
    """How a pool is.

    Attributes:
        known_chunks: Chunks that something is known of.
        down_reason: Why it cannot be asked, in one word; None where it can.
        num_downs: Times that it could not be asked any more.
        threads_busy: Threads inside a call, those that hang included.
        problem: Why nothing ever matches; None where something does, or nothing is known.
    """

    known_chunks: int
    down_reason: str | None = None
    num_downs: int = 0
    threads_busy: int = 0
    problem: str | None = None


class SharedCache(Protocol):
    """The pool that a model's replicas share.

    Attributes:
        kind: As configured.
        chunk_tokens: Tokens a chunk.
        lookup_timeout_s: How long a request waits for `look_up`.
    """

    kind: str
    chunk_tokens: int
    lookup_timeout_s: float

    def chunks(self, packed: bytes, lora: str, salt: str) -> Chunks | None:
        """Return a prompt as this pool sees it; None where it can never be in it."""
        ...

    def known(self, chunks: Chunks) -> SharedPrefix:
        """Return what is known to be there, without a wait."""
        ...

    def look_up(self, chunks: Chunks) -> asyncio.Future[SharedPrefix] | SharedPrefix:
        """Return what is there, now or soon. What comes too late is known the next time."""
        ...

    def computed(self, chunks: Chunks) -> None:
        """Note that a replica has just computed or loaded a whole prompt."""
        ...

    def refute(self, prefix: SharedPrefix, num_served: int) -> None:
        """Note that a replica did not find what was promised.

        Args:
            prefix: What was promised.
            num_served: Leading tokens that it did find.
        """
        ...

    def flush(self) -> int:
        """Forget all that is known, and return how many chunks that were."""
        ...

    async def run(self) -> None:
        """Do what goes on beside requests, for ever."""
        ...

    def close(self) -> None:
        """Let go of threads and connections."""
        ...

    def health(self) -> PoolHealth:
        """Return how it is."""
        ...

    def status(self) -> dict[str, Any]:
        """Return what else people want to know of it."""
        ...


def chunks_of(packed: bytes, spec: HashSpec) -> Chunks:
    """Return a prompt as a pool with these keys sees it; `spec.block_size` is the chunk's."""
    return Chunks(block_keys(packed, spec), packed, spec.cache_salt)
