"""Several gateways in virtual time: shared loads keep the fleet even, private ones do not."""

import statistics

from tests.support.fleet_simulation import CHATS, SHORT, Sharing, Traffic, simulate

ALONE = Sharing(num_gateways=1, tick_s=None)
# The whole prompt is on the first replica alone: every gateway wants to go there.
HOT = Traffic(40.0, 4000, 0.0, (0.99,), hot=1.0)


def skew(sharing):
    return simulate(sharing, HOT, 16.0, seed=11).skew


def ttft_ratio(sharing, traffic, seconds):
    """Return the mean TTFT over that of one gateway."""
    pairs = [
        (simulate(sharing, traffic, seconds, seed), simulate(ALONE, traffic, seconds, seed))
        for seed in range(8)
    ]
    return statistics.mean(many.ttft_s / one.ttft_s for many, one in pairs)


def test_shared_loads_keep_the_fleet_as_even_as_one_gateway_does_and_private_ones_do_not():
    one, shared, private = skew(ALONE), skew(Sharing()), skew(Sharing(tick_s=None))
    assert shared <= 1.05 * one
    assert shared <= 1.7
    # Each fills the replica that all want up to a bound of its own: mean + 4, four times over.
    assert private >= 1.2 * shared


def test_loads_heard_and_told_around_decisions_cost_half_of_those_told_by_the_clock():
    by_clock, around = Sharing(tick_s=0.1), Sharing(tick_s=0.1, around_decisions=True)
    for traffic, seconds in ((CHATS, 40.0), (SHORT, 4.0)):
        cost = ttft_ratio(by_clock, traffic, seconds) - 1
        assert cost > 0.05
        assert ttft_ratio(around, traffic, seconds) - 1 < 0.6 * cost
