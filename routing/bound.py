"""The load bound: how many requests one replica may hold."""

from __future__ import annotations

from math import ceil, floor

# Requests. Products of floats miss whole numbers by far less: 1.05 * 20 / 3 is a little over 7, and
# must not allow an eighth request.
_ROUNDING = 1e-6


def load_cap(
    total_in_flight: float, num_replicas: int, load_bound: float, slack: int, weight: float = 1.0
) -> int:
    """Return the most requests one replica may hold once the next one is placed.

    The mean counts the new request, and a replica's part of it is in proportion to its weight. With
    `load_bound` >= 1 some replica is always under its cap: the parts add up to one request more
    than there are, so not every replica can hold as much as its own.

    Args:
        total_in_flight: Requests in flight over all eligible replicas, without the new one.
        num_replicas: Eligible replicas, at least 1.
        load_bound: Factor over the mean, at least 1.0.
        slack: Requests above the mean that are always allowed, so that small fleets and low
            traffic do not flap.
        weight: The replica's, relative to the mean over all: above 0.

    Returns:
        A count of requests, at least 1.

    Raises:
        ValueError: `num_replicas` is 0, or `load_bound` is below 1.0, or a count is negative, or
            `weight` is not above 0.

    Source:
        Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2018).
    """
    if num_replicas < 1:
        raise ValueError("num_replicas must be at least 1")
    if load_bound < 1.0:
        raise ValueError(f"load_bound must be at least 1.0, got {load_bound}")
    if total_in_flight < 0 or slack < 0:
        raise ValueError("total_in_flight and slack must not be negative")
    if weight <= 0:
        raise ValueError(f"weight must be above 0, got {weight}")
    mean = (total_in_flight + 1) / num_replicas
    by_bound, by_slack = load_bound * mean * weight, (mean + slack) * weight
    return max(ceil(by_bound - _ROUNDING), floor(by_slack + _ROUNDING), 1)
