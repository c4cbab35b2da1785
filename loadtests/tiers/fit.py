"""Fits the price of a load from L2 to the published points, and shows how well that goes. Pure.

A request that is served from L2 takes

    latency_s + token_s * loaded tokens + the step that computes what is left

of which the engine model knows the last part, so what is fitted is a straight line through the
other two. As the points are ratios, errors are relative ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from loadtests.tiers.published import FITTED, Point
from loadtests.tiers.virtual import Asked, Replica, prompts
from routing.lab.engine_profile import EngineProfile, TierCost
from routing.lab.tiers import TierPool

# Qwen2-7B: 28 layers, 4 KV heads of 128, keys and values in 16 bits.
KV_TOKEN_BYTES: Final = 57_344
# Holds every prompt of a run.
POOL_BLOCKS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """What a load takes.

    Attributes:
        latency_s: However short it is.
        token_s: For each token in addition.
    """

    latency_s: float
    token_s: float

    @property
    def bytes_s(self) -> float:
        """Bytes that one load moves a second, without the latency."""
        return KV_TOKEN_BYTES / self.token_s

    def on(self, profile: EngineProfile) -> EngineProfile:
        """Return a profile whose replicas load so, whatever they find."""
        l2 = TierCost(profile.l2.capacity_tokens, self.latency_s, self.token_s)
        return replace(profile, l2=l2, always_loads=True)


def fit(profile: EngineProfile, points: Sequence[Point] = FITTED) -> Line:
    """Return the line that comes nearest to the points, by the sum of squared relative errors.

    Args:
        profile: Times of steps; its own L2 is not looked at.
        points: At least two, of different lengths.
    """
    rows = [_row(profile, point) for point in points]
    return _nearest(rows)


def fit_latency(profile: EngineProfile, token_s: float, points: Sequence[Point] = FITTED) -> Line:
    """Return the nearest line with this time for a token."""
    rows = [_row(profile, point) for point in points]
    weights = [1 / target**2 for _, _, target in rows]
    gaps = [target - rest - token_s * loaded for loaded, rest, target in rows]
    mean_s = sum(w * gap for w, gap in zip(weights, gaps, strict=True)) / sum(weights)
    return Line(mean_s, token_s)


def _cold(profile: EngineProfile, num_tokens: int) -> Asked:
    """Ask a replica that holds nothing."""
    (asked,) = Replica(profile, None).ask([prompts(1, num_tokens)])
    return asked


def _from_l2(profile: EngineProfile, num_tokens: int) -> Asked:
    """Ask a replica that holds nothing, after another one has computed the prompt."""
    pool = TierPool(POOL_BLOCKS)
    Replica(profile, pool).ask([prompts(1, num_tokens)])
    (asked,) = Replica(profile, pool).ask([prompts(1, num_tokens)])
    return asked


def _row(profile: EngineProfile, point: Point) -> tuple[int, float, float]:
    """Return loaded tokens, the seconds beside the load, and the seconds that are to come out."""
    free = _from_l2(Line(0.0, 0.0).on(profile), point.num_tokens)
    # Where only a ratio is given, it is to be the model's own.
    target_s = point.l2_s or _cold(profile, point.num_tokens).ttft_s / point.ratio
    return free.admission.l2_tokens, free.ttft_s, target_s


def _nearest(rows: Sequence[tuple[int, float, float]]) -> Line:
    """Solve the normal equations of two unknowns."""
    ones = tokens = squares = gaps = products = 0.0
    for loaded, rest_s, target_s in rows:
        weight = 1 / target_s**2
        gap_s = target_s - rest_s
        ones += weight
        tokens += weight * loaded
        squares += weight * loaded**2
        gaps += weight * gap_s
        products += weight * loaded * gap_s
    token_s = (ones * products - tokens * gaps) / (ones * squares - tokens**2)
    return Line((gaps - token_s * tokens) / ones, token_s)
