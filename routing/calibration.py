"""Prices that follow what is observed: time to first token, by what was loaded and computed. Pure.

Each price is a straight line that starts as the configured one. An observation counts for about
the next fifty, and may be off by a factor of three at most: a stall of a minute moves a price as
little as any outlier, and a tier that stays slower than it was thought to be is learned within some
dozen requests (docs/adr/0035).
"""

from __future__ import annotations

from dataclasses import replace

from routing.cost import CostModel
from routing.types import ReplicaLoad
from routing.value import value

# Weight that all older observations lose with each new one: a memory of 50.
_FORGET = 0.02
# The configured line counts as so many observations at each of two places, and fades as they do;
# what stays of it decides only what the observations leave open.
_PRIOR_WEIGHT = 2.0
_MIN_PRIOR_WEIGHT = 0.01
# How far an observation may be from what was expected. Beyond it is a stall, or the next step of a
# price that is on its way.
_MAX_FACTOR = 3.0
# Below this, times are noise of schedulers and timers.
_FLOOR_S = 1e-3
# Bounds of all lines: no load takes longer to begin, and none is slower than the slowest prefill.
_MAX_LATENCY_S = 10.0
_MAX_TOKEN_S = 0.01
# Of a base line: engines from 50 times faster to 50 times slower than configured.
_MIN_SCALE = 0.02
_MAX_SCALE = 50.0
# One engine step, as the policies assume it (`ExpectedTtft.fixed_s`).
_FIXED_S = 8e-3
# Where prompts lie: a chunk of LMCache's, and a long document.
_SHORT_TOKENS = 256.0
_LONG_TOKENS = 4096.0
# A replica with more to do answers later for reasons that are no tier's.
MAX_IN_FLIGHT = 4
MAX_QUEUE_S = 1e-3
# Prices are put in force when one of them moved by this much: each time makes routes anew.
_NEWS_RATIO = 0.02


@value
class Observed:
    """One streamed answer whose engine told what it had cached.

    Attributes:
        first_token_s: From sending the request to the first byte of the answer's body.
        num_prompt_tokens: Of the prompt.
        l0_tokens: Tokens that were in GPU memory.
        l1_tokens: Tokens that were loaded from host memory.
        l2_tokens: Tokens that were loaded from the shared pool.
        load: What the replica had to do besides.
    """

    first_token_s: float
    num_prompt_tokens: int
    l0_tokens: int
    l1_tokens: int
    l2_tokens: int
    load: ReplicaLoad


class PriceLine:
    """y = base + slope * x, fitted to what is observed, within bounds.

    Args:
        base: Where it starts, in seconds.
        slope: Likewise, in seconds for each x.
        places: Two values of x at which the start counts.
        min_slope: Bound.
        max_slope: Bound.
    """

    def __init__(
        self,
        base: float,
        slope: float,
        places: tuple[float, float],
        min_slope: float = 0.0,
        max_slope: float = _MAX_TOKEN_S,
    ) -> None:
        self.base = base
        self.slope = slope
        self.num_observed = 0
        self._min_slope = min_slope
        self._max_slope = max_slope
        self._prior = [(x, base + slope * x) for x in places]
        # Sums over observations: weights, x, y, x * x, x * y.
        self._sums = [0.0] * 5

    def at(self, x: float) -> float:
        """Return the seconds that are expected."""
        return self.base + self.slope * x

    def observe(self, x: float, seconds: float) -> None:
        """Take one observation."""
        expected = max(self.at(x), _FLOOR_S)
        y = min(max(seconds, expected / _MAX_FACTOR), expected * _MAX_FACTOR)
        self.num_observed += 1
        keep = 1.0 - _FORGET
        for place, term in enumerate((1.0, x, y, x * x, x * y)):
            self._sums[place] = self._sums[place] * keep + term
        self._fit()

    def _fit(self) -> None:
        weight, sx, sy, sxx, sxy = self._sums
        start = max(_MIN_PRIOR_WEIGHT, _PRIOR_WEIGHT * (1.0 - _FORGET) ** self.num_observed)
        for x, y in self._prior:
            weight += start
            sx, sy = sx + start * x, sy + start * y
            sxx, sxy = sxx + start * x * x, sxy + start * x * y
        spread = weight * sxx - sx * sx  # above 0, as the start counts at two places
        slope = (weight * sxy - sx * sy) / spread
        base = (sy - slope * sx) / weight
        if base < 0.0:
            base, slope = 0.0, sxy / sxx
        bounded = min(max(slope, self._min_slope), self._max_slope)
        if bounded != slope:
            base = max(0.0, (sy - bounded * sx) / weight)
        self.slope, self.base = bounded, min(base, _MAX_LATENCY_S)


class Calibrator:
    """Learns one model's prices.

    Prefill is learned from answers that loaded nothing, and a tier from what those that loaded
    from it took longer. Prices stay as configured until something was loaded: without tiers they
    would change no order worth the unrest.

    Args:
        prior: As configured.

    Attributes:
        cost: The prices in force.
    """

    def __init__(self, prior: CostModel) -> None:
        self.prior = prior
        self.cost = prior
        long_s = prior.prefill_s(int(_LONG_TOKENS), 0)
        # Seconds that prefill takes against those that it should take.
        ends = (0.0, max(long_s, _FLOOR_S))
        self._prefill = PriceLine(_FIXED_S, 1.0, ends, _MIN_SCALE, _MAX_SCALE)
        places = (_SHORT_TOKENS, _LONG_TOKENS)
        self._l1 = PriceLine(prior.l1_latency_s, prior.l1_token_s, places)
        self._l2 = PriceLine(prior.l2_latency_s, prior.l2_token_s, places)

    def observe(self, seen: Observed) -> bool:
        """Take one answer.

        Returns:
            Whether `cost` is another one now.
        """
        if seen.load.in_flight > MAX_IN_FLIGHT or seen.load.prefill_s > MAX_QUEUE_S:
            return False
        cached = seen.l0_tokens + seen.l1_tokens + seen.l2_tokens
        prefill_s = self.prior.prefill_s(max(0, seen.num_prompt_tokens - cached), cached)
        if not seen.l1_tokens and not seen.l2_tokens:
            self._prefill.observe(prefill_s, seen.first_token_s)
        elif not seen.l2_tokens:
            self._l1.observe(seen.l1_tokens, seen.first_token_s - self._prefill.at(prefill_s))
        else:
            l1_s = self._l1.at(seen.l1_tokens) if seen.l1_tokens else 0.0
            others_s = self._prefill.at(prefill_s) + l1_s
            self._l2.observe(seen.l2_tokens, seen.first_token_s - others_s)
        return self._publish()

    def _publish(self) -> bool:
        if not self._l1.num_observed and not self._l2.num_observed:
            return False
        scale = self._prefill.slope
        learned = replace(
            self.prior,
            prefill_token_s=self.prior.prefill_token_s * scale,
            prefill_pair_s=self.prior.prefill_pair_s * scale,
            l1_latency_s=self._l1.base,
            l1_token_s=self._l1.slope,
            l2_latency_s=self._l2.base,
            l2_token_s=self._l2.slope,
        )
        if not _is_news(self.cost, learned):
            return False
        self.cost = learned
        return True


def _is_news(before: CostModel, after: CostModel) -> bool:
    pairs = (
        (before.prefill_token_s, after.prefill_token_s),
        (before.prefill_s(1000, 0), after.prefill_s(1000, 0)),
        (before.l1_latency_s, after.l1_latency_s),
        (before.l1_token_s, after.l1_token_s),
        (before.l2_latency_s, after.l2_latency_s),
        (before.l2_token_s, after.l2_token_s),
    )
    return any(abs(new - old) > _NEWS_RATIO * max(new, old) for old, new in pairs)
