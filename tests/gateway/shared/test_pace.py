"""When gateways tell and hear each other."""

import asyncio
from random import Random

import pytest

from gateway.shared import pace as module
from gateway.shared.pace import MAX_TICKS_PER_S, MIN_PAUSE_S, SILENT_AFTER_S, Pace

PATIENT_S = 0.003


class Clock:
    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


@pytest.fixture
def now():
    return Clock()


@pytest.fixture
def pace(now):
    return Pace(now, Random(1))


def heard(pace, num_gateways=2, took_s=0.001, spent_s=0.0, *, is_busy=True):
    pace.heard(num_gateways, took_s, spent_s, is_busy=is_busy)


async def test_who_has_nobody_to_hear_or_heard_nobody_yet_does_not_wait(pace, now):
    assert pace.ask(PATIENT_S) is None
    heard(pace, num_gateways=1)
    now.time += 0.05
    assert pace.ask(PATIENT_S) is None


async def test_what_was_heard_a_moment_ago_is_not_asked_for(pace, now):
    heard(pace)
    now.time += MIN_PAUSE_S
    assert pace.ask(PATIENT_S) is None


async def test_all_who_ask_are_answered_by_the_next_tick(pace, now):
    heard(pace)
    now.time += 0.02
    first, second = pace.ask(PATIENT_S), pace.ask(PATIENT_S)
    assert first is second
    assert not first.done()
    heard(pace)
    assert first.done()
    now.time += 0.02
    assert not pace.ask(PATIENT_S).done(), "the one after it is another one"


async def test_nobody_waits_for_those_who_are_silent_or_late(pace, now):
    heard(pace)
    now.time += SILENT_AFTER_S
    assert pace.ask(PATIENT_S) is None
    heard(pace, took_s=0.05)
    now.time += 0.02
    assert pace.ask(PATIENT_S) is None


async def test_many_gateways_ask_more_rarely(pace, now):
    heard(pace, num_gateways=50)
    now.time += 50 / MAX_TICKS_PER_S - 0.001
    assert pace.ask(PATIENT_S) is None
    now.time += 0.002
    assert pace.ask(PATIENT_S) is not None


async def test_a_gateway_for_which_ticks_are_dear_asks_more_rarely(pace, now):
    heard(pace, spent_s=0.002)
    now.time += 0.049
    assert pace.ask(PATIENT_S) is None
    now.time += 0.002
    assert pace.ask(PATIENT_S) is not None


async def test_a_decision_is_told_soon_but_not_before_the_pause_is_over(pace, monkeypatch):
    monkeypatch.setattr(module, "MIN_PAUSE_S", 0.05)
    monkeypatch.setattr(module, "INTERVAL_S", 60.0)
    loop = asyncio.get_running_loop()
    pace = Pace(loop.time, Random(1))
    heard(pace, is_busy=False)
    began = loop.time()
    pace.tell()
    async with asyncio.timeout(30.0):
        await pace.rest(began)
    assert loop.time() - began >= 0.05


async def test_without_others_a_decision_is_told_to_nobody(monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_S", 0.05)
    loop = asyncio.get_running_loop()
    pace = Pace(loop.time, Random(1))
    heard(pace, num_gateways=1)
    began = loop.time()
    pace.tell()
    await pace.rest(began)
    assert loop.time() - began >= 0.9 * 0.05
