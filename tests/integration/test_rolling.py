"""A short form of `make measure-rolling`: real processes, 20 requests a second."""

import pytest

from loadtests.children import Children
from loadtests.programs import environment
from loadtests.rolling.fleet import Fleet
from loadtests.rolling.scenarios import kill_replica, roll_gateways, roll_replicas

pytestmark = pytest.mark.alone  # times of seconds are promised, and processes come and go

RATE_PER_S = 20.0


@pytest.fixture
def fleet(tmp_path):
    with Children(environment(), tmp_path) as children:
        yield Fleet(children)


async def test_a_replica_is_replaced_and_another_one_killed_under_traffic(fleet):
    """No request fails but those that ran on the killed replica, and each of them is told."""
    await fleet.start_replicas(2)
    rolled = await roll_replicas(fleet, RATE_PER_S, count=1)
    killed = await kill_replica(fleet, RATE_PER_S)
    assert rolled.missed() + killed.missed() == []


async def test_gateways_are_replaced_behind_a_balancer_under_traffic(fleet):
    """No request fails, and both gateways that were stopped exit with code 0."""
    await fleet.start_replicas(1)
    rolled = await roll_gateways(fleet, RATE_PER_S, count=2)
    assert rolled.missed() == []
