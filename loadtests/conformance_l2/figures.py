"""What the run makes of what it saw: right or wrong, why, ratios of times, goals. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

# All goals are from the issue that asked for this.
MIN_CROSSINGS: Final = 40
MIN_RIGHT_RATIO: Final = 0.95
MAX_TOTAL_S: Final = 20 * 60
UNKNOWN: Final = "unknown"
L2: Final = "L2"


@dataclass(frozen=True, slots=True)
class Seen:
    """One prompt on the replica that had not computed it.

    Attributes:
        kind: What it tries.
        name: Of the prompt.
        replica: That answered.
        prompt_tokens: By the engine's count.
        files: Of the prompt's leading chunks in the directory, counted without the gateway.
        chunk_tokens: Tokens a chunk.
        explained: Tokens that were to be cached just before, over all tiers.
        predicted: Tokens that the decision itself expected, over all tiers.
        own_tokens: The part of `explained` in the replica's own memory.
        tier: The farthest tier of the decision.
        found: Tokens that LMCache says it found, in L1 and L2.
        actual: Tokens that the engine had cached.
    """

    kind: str
    name: str
    replica: str
    prompt_tokens: int
    files: int
    chunk_tokens: int
    explained: int
    predicted: int
    own_tokens: int
    tier: str
    found: int
    actual: int

    @property
    def predicted_files(self) -> int:
        """Chunks in the directory that the gateway counted on."""
        if self.tier != L2:
            # What the replica has by itself is not taken from the pool.
            return min(self.files, self.own_tokens // self.chunk_tokens)
        # The last token of a prompt is always computed, also where its chunk is there.
        return -(-self.predicted // self.chunk_tokens)

    @property
    def is_right(self) -> bool:
        """Whether prediction, directory and engine agree."""
        return self.predicted_files == self.files and self.predicted == self.actual

    @property
    def cause(self) -> str:
        """Why they do not; empty where they do."""
        whole = self.prompt_tokens // self.chunk_tokens
        there = min(self.files * self.chunk_tokens, self.prompt_tokens - 1)
        causes = (
            (self.is_right, ""),
            (self.predicted < self.explained, "the look-up came after the decision"),
            (self.predicted < there, "the gateway did not find files that are there"),
            (self.predicted > max(there, self.own_tokens), "the gateway counted on missing files"),
            (self.found < there, "LMCache did not find files that are there"),
            (self.actual < self.predicted, "the engine did not take what LMCache found"),
            (self.files < whole and self.actual > there, "written while it was asked for"),
        )
        return next((cause for holds, cause in causes if holds), UNKNOWN)


class Way(StrEnum):
    """Where a timed prompt came from."""

    COLD = "cold"
    L0 = "L0"
    L1 = "L1"
    L2 = "L2"


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of one prompt.

    Attributes:
        name: Of the prompt.
        prompt_tokens: By the engine's count.
        ttft_s: Seconds to the first token, by way.
        cached_tokens: By way, by the engine's count.
        found_tokens: By way, those that LMCache says it found in the tier of that name.
    """

    name: str
    prompt_tokens: int
    ttft_s: Mapping[Way, float]
    cached_tokens: Mapping[Way, int]
    found_tokens: Mapping[Way, int]

    def served(self, chunk_tokens: int) -> bool:
        """Return whether each way was what it is called, by LMCache's word and the engine's."""
        whole = self.prompt_tokens // chunk_tokens * chunk_tokens
        cached, found = self.cached_tokens, self.found_tokens
        deep = all(
            min(whole, self.prompt_tokens - 1) == cached[way] and found[way] == whole
            for way in (Way.L1, Way.L2)
        )
        return deep and cached[Way.COLD] == 0 and cached[Way.L0] >= cached[Way.L1]


def ratios(timed: Sequence[Timed]) -> dict[Way, float]:
    """Return how many times faster than cold each way is: the median over the prompts."""
    return {
        way: statistics.median(one.ttft_s[Way.COLD] / one.ttft_s[way] for one in timed)
        for way in Way
    }


def right_ratio(seen: Sequence[Seen]) -> float:
    """Return the share that is right; 0.0 without any."""
    return sum(one.is_right for one in seen) / max(len(seen), 1)


def missed_goals(
    crossed: Sequence[Seen], strangers: Sequence[Seen], timed: Sequence[Timed], total_s: float
) -> list[str]:
    """Return a line for every goal that is missed.

    Args:
        crossed: What L2 had to serve.
        strangers: What it had not to.
        timed: Prompts with the times of all ways.
        total_s: Of the whole run.
    """
    unknown = [one.name for one in crossed if one.cause == UNKNOWN]
    taken = [one.name for one in strangers if one.predicted or one.actual]
    mixed = [one.name for one in timed if not one.served(crossed[0].chunk_tokens)]
    faster = ratios(timed)[Way.L2] if timed else 0.0
    goals: Mapping[str, bool] = {
        f"at least {MIN_CROSSINGS} requests, made {len(crossed)}": len(crossed) >= MIN_CROSSINGS,
        f"{MIN_RIGHT_RATIO:.0%} foreseen rightly, were {right_ratio(crossed):.1%}": (
            right_ratio(crossed) >= MIN_RIGHT_RATIO
        ),
        f"every difference explained, not {', '.join(unknown)}": not unknown,
        f"nothing for other salts and short prompts, but for {', '.join(taken)}": not taken,
        f"each time from the tier that it is called after, not {', '.join(mixed)}": not mixed,
        f"L2 faster than cold, was {faster:.2f} times": faster > 1.0,
        f"at most {MAX_TOTAL_S} s, took {total_s:.0f}": total_s <= MAX_TOTAL_S,
    }
    return [goal for goal, met in goals.items() if not met]


def summary(seen: Sequence[Seen]) -> dict[str, Any]:
    """Return the figures of one kind of prompt."""
    return {
        "requests": len(seen),
        "right": sum(one.is_right for one in seen),
        "files": sum(one.files for one in seen),
        "predicted_files": sum(one.predicted_files for one in seen),
        "predicted_tokens": sum(one.predicted for one in seen),
        "lmcache_tokens": sum(one.found for one in seen),
        "actual_tokens": sum(one.actual for one in seen),
        "causes": sorted({one.cause for one in seen} - {""}),
    }
