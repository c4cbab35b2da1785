"""The load bound: how many requests one replica may hold."""

from __future__ import annotations

from math import ceil, floor


def load_cap(total_in_flight: int, num_replicas: int, load_bound: float, slack: int) -> int:
    """Return the most requests one replica may hold once the next one is placed.

    The mean counts the new request. With `load_bound` >= 1 some replica is always under the cap:
    the least loaded one holds at most floor(total / n), and ceil((total + 1) / n) is above that.

    Args:
        total_in_flight: Requests in flight over all eligible replicas, without the new one.
        num_replicas: Eligible replicas, at least 1.
        load_bound: Factor over the mean, at least 1.0.
        slack: Requests above the mean that are always allowed, so that small fleets and low
            traffic do not flap.

    Returns:
        A count of requests, at least 1.

    Raises:
        ValueError: `num_replicas` is 0, or `load_bound` is below 1.0, or a count is negative.

    Source:
        Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2018).
    """
    if num_replicas < 1:
        raise ValueError("num_replicas must be at least 1")
    if load_bound < 1.0:
        raise ValueError(f"load_bound must be at least 1.0, got {load_bound}")
    if total_in_flight < 0 or slack < 0:
        raise ValueError("total_in_flight and slack must not be negative")
    mean = (total_in_flight + 1) / num_replicas
    return max(ceil(load_bound * mean), floor(mean + slack), 1)
