"""What a shared pool adds to a match: every replica reaches it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from routing.types import NO_MATCH, PrefixMatch, ReplicaId


def credited(match: PrefixMatch, shared_tokens: int) -> PrefixMatch:
    """Return a match with what the shared pool serves behind the replica's own memory.

    Args:
        match: What the replica holds.
        shared_tokens: Leading tokens of the prompt that it can take from the pool.
    """
    l2_tokens = shared_tokens - match.l0_tokens - match.l1_tokens
    if l2_tokens <= match.l2_tokens:
        return match
    return PrefixMatch(match.l0_tokens, match.l1_tokens, l2_tokens, match.confirmed_tokens)


def with_shared(
    matches: Mapping[ReplicaId, PrefixMatch],
    replicas: Iterable[tuple[ReplicaId, int]],
    shared_tokens: int,
    num_prompt_tokens: int,
) -> dict[ReplicaId, PrefixMatch]:
    """Return all replicas' matches with what the pool adds; see `credited`.

    Args:
        matches: What each replica holds; those that hold nothing are not in it.
        replicas: Every replica that reaches the pool, with its block size.
        shared_tokens: Leading tokens of the prompt that are in the pool.
        num_prompt_tokens: Of the whole prompt; its last token is always computed.
    """
    merged = dict(matches)
    # One object for all that hold nothing: most of a large fleet, and a policy prices it once.
    alone: dict[int, PrefixMatch] = {}
    for replica, block_size in replicas:
        match = matches.get(replica)
        known = alone.get(block_size) if match is None else None
        if known is None:
            known = credited(
                match or NO_MATCH, taken_tokens(shared_tokens, num_prompt_tokens, block_size)
            )
            if match is None:
                alone[block_size] = known
        if known.total_tokens:
            merged[replica] = known
    return merged


def taken_tokens(held_tokens: int, num_prompt_tokens: int, block_size: int) -> int:
    """Return what an engine takes of LMCache: whole blocks, or all of a prompt but its last token.

    Unlike a block of the engine's own memory, which it drops where the prompt ends with it, a
    loaded one is kept: 511 of 512 tokens, measured with vLLM 0.32 and LMCache 0.5.6.

    Args:
        held_tokens: Leading tokens that LMCache has, in host memory or in the pool.
        num_prompt_tokens: Of the whole prompt.
        block_size: The engine's.
    """
    if held_tokens >= num_prompt_tokens:
        return num_prompt_tokens - 1
    return held_tokens // block_size * block_size
