"""The gate: places, the queue, turns between keys, and books that balance."""

import asyncio

import pytest

from gateway.admission import Admission
from gateway.config.guards import LimitsConfig
from gateway.errors import Overloaded


def limits(places, queue=10, wait_s=5.0):
    return LimitsConfig(max_in_flight=places, queue_requests=queue, queue_timeout_s=wait_s)


def gate(places=1, queue=10, wait_s=5.0):
    return Admission(limits(places, queue, wait_s))


class Visits:
    """Requests that come in through a gate and stay until they are told to leave."""

    def __init__(self, admission):
        self.admission = admission
        self.inside = []
        self.leave = {}

    def come(self, name, key=""):
        self.leave[name] = asyncio.Event()
        return asyncio.create_task(self._visit(name, key))

    async def _visit(self, name, key):
        await self.admission.enter(key)
        self.inside.append(name)
        await self.leave[name].wait()
        self.admission.leave()

    async def end(self, tasks):
        """Let all leave."""
        for event in self.leave.values():
            event.set()
        await asyncio.gather(*tasks)


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_beyond_the_places_wait_in_order():
    visits = Visits(gate(places=2))
    tasks = [visits.come(name) for name in "abcd"]
    await turns()
    assert visits.inside == ["a", "b"]
    visits.leave["b"].set()
    await turns()
    assert visits.inside == ["a", "b", "c"]
    await visits.end(tasks)
    assert (visits.admission.num_inside, visits.admission.num_waiting) == (0, 0)


async def test_keys_take_turns_whatever_their_numbers():
    visits = Visits(gate())
    tasks = [visits.come("first")]
    await turns()
    tasks += [visits.come(f"busy{n}", "busy") for n in range(4)]
    await turns()
    tasks += [visits.come(f"calm{n}", "calm") for n in range(2)]
    await turns()
    for _ in range(7):
        visits.leave[visits.inside[-1]].set()
        await turns()
    assert visits.inside == ["first", "busy0", "calm0", "busy1", "calm1", "busy2", "busy3"]
    await asyncio.gather(*tasks)


async def test_a_full_queue_refuses_at_once():
    visits = Visits(gate(queue=1))
    tasks = [visits.come("a"), visits.come("b")]
    await turns()
    with pytest.raises(Overloaded, match="max_in_flight"):
        await visits.come("c")
    visits.leave["a"].set()
    visits.leave["b"].set()
    await asyncio.gather(*tasks)


async def test_a_wait_that_is_too_long_ends_and_leaves_no_trace():
    visits = Visits(gate(wait_s=0.01))
    task = visits.come("a")
    await turns()
    with pytest.raises(Overloaded, match="No place within"):
        await visits.come("b")
    assert visits.admission.num_waiting == 0
    visits.leave["a"].set()
    await task
    assert visits.admission.num_inside == 0


@pytest.mark.parametrize("when", ["waiting", "as its turn comes"])
async def test_a_client_that_leaves_the_queue_takes_no_place_with_it(when):
    visits = Visits(gate())
    first = visits.come("a")
    await turns()
    gone, last = visits.come("b", "k"), visits.come("c", "l")
    await turns()
    if when == "waiting":
        gone.cancel()
        await turns()
        visits.leave["a"].set()
    else:
        visits.leave["a"].set()
        await asyncio.sleep(0)  # a has given its place to b, and b has not run yet
        gone.cancel()
    await turns()
    assert visits.inside == ["a", "c"]
    visits.leave["c"].set()
    await asyncio.gather(first, last)
    assert (visits.admission.num_inside, visits.admission.num_waiting) == (0, 0)


async def test_more_places_take_in_at_once_those_who_wait_and_nobody_overtakes_them():
    visits = Visits(gate(places=1))
    tasks = [visits.come(name) for name in "abcd"]
    await turns()
    visits.admission.configure(limits(places=3))
    await turns()
    tasks.append(visits.come("late"))
    await turns()
    assert visits.inside == ["a", "b", "c"]
    await visits.end(tasks)
    assert (visits.admission.num_inside, visits.admission.num_waiting) == (0, 0)


async def test_fewer_places_hold_from_the_next_request_that_leaves():
    visits = Visits(gate(places=3))
    tasks = [visits.come(name) for name in "abcd"]
    await turns()
    visits.admission.configure(limits(places=1))
    for name, inside in (("a", 2), ("b", 1), ("c", 1)):
        visits.leave[name].set()
        await turns()
        assert visits.admission.num_inside == inside
    assert visits.inside == ["a", "b", "c", "d"]
    visits.leave["d"].set()
    await asyncio.gather(*tasks)
    assert (visits.admission.num_inside, visits.admission.num_waiting) == (0, 0)
