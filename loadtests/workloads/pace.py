"""How much of a log fits a run: enough to make queues under round robin, and no more.

What a log asks for depends on who serves it. This estimates the prompt tokens that round robin
would have to compute, by dealing the calls out in turn over replicas that forget nothing. From
that follow how many calls of a session can be made one after the other, how many sessions fit, and
how long the run should be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from loadtests.workloads.replay import CHARS_PER_TOKEN, STARTING_SHARE, pick
from loadtests.workloads.sessions import Session, Turn

# Share of all replicas' prefill time that round robin would use: below 1 the queues drain again.
TARGET_UTILISATION: Final = 0.9
# Shorter runs measure start-up more than routing.
MIN_SECONDS: Final = 4.0
# About a vLLM block of 16 tokens.
_BLOCK_CHARS: Final = 40
# What a call takes in a busy fleet: waiting takes about as long as the prefill itself, and a token
# of the answer comes with every step, of which many hold a chunk of somebody's prefill.
_WAITING_FACTOR: Final = 2.0
_ANSWER_TOKEN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Pace:
    """Which part of a log to replay, and in what time.

    Attributes:
        sessions: Evenly chosen from the log, in its order, times as in the log. Long sessions
            are cut after the calls that can follow each other within the run.
        seconds: Length of the run.
    """

    sessions: tuple[Session, ...]
    seconds: float


def choose(
    sessions: Sequence[Session], seconds: float, num_replicas: int, prefill_tokens_per_s: float
) -> Pace:
    """Choose the most that a run of at most `seconds` can serve.

    Args:
        sessions: The whole log, at least one session.
        seconds: The longest run wanted.
        num_replicas: Replicas of the fleet.
        prefill_tokens_per_s: What one of them can compute.
    """
    capacity = num_replicas * prefill_tokens_per_s * TARGET_UTILISATION
    missed = round_robin_misses(sessions, num_replicas)
    budget_s = (1 - STARTING_SHARE) * seconds
    whole = [
        _shortened(session, tokens, prefill_tokens_per_s, budget_s)
        for session, tokens in zip(sessions, missed, strict=True)
    ]
    # A larger pick holds every smaller one, so bisection finds the largest that fits.
    fits, too_many = 1, len(whole) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if _total(pick(whole, middle), num_replicas) <= capacity * seconds:
            fits = middle
        else:
            too_many = middle
    chosen = pick(whole, fits)
    needed_s = _total(chosen, num_replicas) / capacity
    return Pace(tuple(chosen), min(seconds, max(MIN_SECONDS, needed_s)))


def round_robin_misses(sessions: Sequence[Session], num_replicas: int) -> list[list[float]]:
    """Estimate the prompt tokens that round robin computes, with caches that forget nothing.

    Args:
        sessions: Of a log: every turn holds its whole prompt.
        num_replicas: Replicas that take the calls in turn.

    Returns:
        For each session the tokens of each of its turns.
    """
    calls = sorted(
        (turn.not_before_s, number, index)
        for number, session in enumerate(sessions)
        for index, turn in enumerate(session.turns)
    )
    held: list[set[bytes]] = [set() for _ in range(num_replicas)]
    missed = [[0.0] * len(session.turns) for session in sessions]
    for order, (_, number, index) in enumerate(calls):
        cache = held[order % num_replicas]
        text = _prompt_text(sessions[number].turns[index])
        keys = _block_keys(text)
        hits = next((at for at, key in enumerate(keys) if key not in cache), len(keys))
        missed[number][index] = (len(text) - hits * _BLOCK_CHARS) / CHARS_PER_TOKEN
        cache.update(keys)
    return missed


def _total(sessions: Sequence[Session], num_replicas: int) -> float:
    return sum(map(sum, round_robin_misses(sessions, num_replicas)))


def _shortened(
    session: Session, missed_tokens: Sequence[float], tokens_per_s: float, budget_s: float
) -> Session:
    """Cut a session after the last call that would still begin within `budget_s` of its start."""
    busy_s = 0.0
    kept = 0
    for turn, tokens in zip(session.turns, missed_tokens, strict=True):
        if busy_s > budget_s:
            break
        kept += 1
        busy_s += _WAITING_FACTOR * tokens / tokens_per_s + _ANSWER_TOKEN_S * turn.max_tokens
    return replace(session, turns=session.turns[:kept])


def _prompt_text(turn: Turn) -> str:
    return "\0".join(str(message.get("content") or "") for message in turn.messages)


def _block_keys(text: str) -> list[bytes]:
    """Chained digests of the whole blocks of a text: equal keys mean equal beginnings."""
    digest = blake2b(digest_size=8)
    keys = []
    for start in range(0, len(text) - _BLOCK_CHARS + 1, _BLOCK_CHARS):
        digest.update(text[start : start + _BLOCK_CHARS].encode())
        keys.append(digest.digest())
    return keys
