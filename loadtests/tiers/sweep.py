"""The sweep in virtual time: lengths, clients at once, chats. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import Final

from loadtests.tiers.fit import POOL_BLOCKS
from loadtests.tiers.published import TURNS
from loadtests.tiers.virtual import Asked, Prompt, Replica, prompts
from routing.lab.engine_profile import EngineProfile
from routing.lab.tiers import TierPool

# The published lengths go from 500 to 3,000 tokens; the first is for break-evens below that.
LENGTHS: Final = (250, *range(500, 3001, 500))
CONCURRENCIES: Final = (1, 2, 4, 8, 16, 32, 64)
# Of each client: enough for a steady state behind the first wave, which comes all at once.
REQUESTS_EACH: Final = 6


class Way(StrEnum):
    """Where a prompt's KV comes from."""

    COLD = "cold"  # all of it is computed
    IN_TURN = "L2, one load at a time"  # as LMCache's in-process form loads
    AT_ONCE = "L2, loads at once"  # they wait out their latency together, and share the bandwidth


@dataclass(frozen=True, slots=True)
class Cell:
    """One length and one number of clients; mean times in seconds.

    Attributes:
        num_tokens: Of each prompt.
        clients: That ask at once.
        ttft_s: To the first token.
        e2e_s: To the last one.
    """

    num_tokens: int
    clients: int
    ttft_s: Mapping[Way, float]
    e2e_s: Mapping[Way, float]

    def ratio(self, way: Way, *, whole: bool = False) -> float:
        """Return how many times faster than cold a way is.

        Args:
            way: Of the two from L2.
            whole: To the last token instead of to the first.
        """
        times_s = self.e2e_s if whole else self.ttft_s
        return times_s[Way.COLD] / times_s[way]


def cell(
    profile: EngineProfile, num_tokens: int, clients: int, requests_each: int = REQUESTS_EACH
) -> Cell:
    """Ask one replica for prompts that another one has computed, and for as many without L2."""
    asked = prompts_of_clients(num_tokens, clients, requests_each)
    pool = TierPool(POOL_BLOCKS)
    # One at a time, as only what it leaves in the pool matters.
    Replica(profile, pool).ask([[prompt for client in asked for prompt in client]])
    answered = {
        Way.COLD: Replica(profile, None).ask(asked),
        Way.IN_TURN: Replica(replace(profile, loads_overlap=False), pool).ask(asked),
        Way.AT_ONCE: Replica(replace(profile, loads_overlap=True), pool).ask(asked),
    }
    return Cell(
        num_tokens,
        clients,
        ttft_s={way: _mean_ttft(found) for way, found in answered.items()},
        e2e_s={way: fmean(one.e2e_s for one in found) for way, found in answered.items()},
    )


def prompts_of_clients(
    num_tokens: int, clients: int, requests_each: int, first: int = 0
) -> list[list[Prompt]]:
    """Return the prompts of each client, all different, with numbers from `first` on."""
    return [
        prompts(requests_each, num_tokens, first=first + client * requests_each)
        for client in range(clients)
    ]


def break_even(cells: Sequence[Cell], way: Way, *, whole: bool = False) -> float | None:
    """Return the tokens from which on L2 is faster.

    Args:
        cells: Of one number of clients, by growing length.
        way: Of the two from L2.
        whole: To the last token instead of to the first.

    Returns:
        Between two lengths by a straight line; the first length where L2 is faster there already;
        None where it is not at the last one.
    """
    ratios = [one.ratio(way, whole=whole) for one in cells]
    slower = [at for at, ratio in enumerate(ratios) if ratio <= 1.0]
    if not slower:
        return float(cells[0].num_tokens)
    at = slower[-1]
    if at == len(cells) - 1:
        return None
    share = (1.0 - ratios[at]) / (ratios[at + 1] - ratios[at])
    below, above = cells[at].num_tokens, cells[at + 1].num_tokens
    return below + share * (above - below)


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """One turn of a chat of four, mean TTFTs in seconds.

    Attributes:
        num_tokens: Of the prompt.
        kept_s: On the replica that had the turns before, in its own memory.
        replayed_s: On another one, which had the turns before too, and now L2 for the new part.
        moved_cold_s: On one that has seen nothing of it, without L2.
        moved_l2_s: The same, with L2.
    """

    num_tokens: int
    kept_s: float
    replayed_s: float
    moved_cold_s: float
    moved_l2_s: float


def chats(profile: EngineProfile, clients: int) -> list[TurnTimes]:
    """Hold as many chats at once, and hold them again on other replicas.

    Each turn's prompt begins with the whole one before, as in a chat whose answers are a few
    tokens. In the first pass a replica computes only what a turn adds.
    """
    talks = [_chat(client) for client in range(clients)]
    pool = TierPool(POOL_BLOCKS)
    kept = _by_length(Replica(profile, pool).ask(talks))
    replayed = _by_length(Replica(profile, pool).ask(talks))
    times = []
    for at, turn in enumerate(TURNS):
        only = [[talk[at]] for talk in talks]
        times.append(
            TurnTimes(
                num_tokens=turn.num_tokens,
                kept_s=kept[turn.num_tokens],
                replayed_s=replayed[turn.num_tokens],
                moved_cold_s=_mean_ttft(Replica(profile, None).ask(only)),
                moved_l2_s=_mean_ttft(Replica(profile, pool).ask(only)),
            )
        )
    return times


def _chat(number: int) -> list[Prompt]:
    (whole,) = prompts(1, TURNS[-1].num_tokens, first=number)
    return [whole[: turn.num_tokens] for turn in TURNS]


def _by_length(asked: Sequence[Asked]) -> Mapping[int, float]:
    lengths = {one.num_tokens for one in asked}
    return {
        length: _mean_ttft([one for one in asked if one.num_tokens == length]) for length in lengths
    }


def _mean_ttft(asked: Sequence[Asked]) -> float:
    return fmean(one.ttft_s for one in asked)
