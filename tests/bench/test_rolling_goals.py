"""The judgement of the rolling and scale measurements from literal figures."""

import pytest

from loadtests.demo.client import Answer, Failure
from loadtests.goals import Findings, Line, at_most, none
from loadtests.rolling.goals import unharmed
from loadtests.rolling.traffic import Outcome, failures
from loadtests.scale.program import Found

FINE = Answer(sent_s=0.0, status=200)
EVENT = Answer(sent_s=0.0, status=200, failure=Failure.BROKEN, detail="error event: gone")
CUT = Answer(sent_s=0.0, status=200, failure=Failure.BROKEN, detail="the connection closed")
STATUS = Answer(sent_s=0.0, status=502, failure=Failure.STATUS, detail="HTTP 502: gone")
BOTH = [Outcome(True, FINE), Outcome(False, FINE)]


def test_traffic_without_a_failure_meets_its_goals():
    assert Findings("t", unharmed(BOTH)).missed() == []


@pytest.mark.parametrize(
    ("outcomes", "says"),
    [
        ([*BOTH, Outcome(False, STATUS)], ["t: failed requests: 1, not 0"]),
        ([*BOTH, Outcome(True, CUT)], ["t: failed or broken streams: 1, not 0"]),
        ([], ["t: requests: 0, 0 of them streams, not > 0"]),
    ],
)
def test_failures_and_silence_miss_them(outcomes, says):
    assert Findings("t", unharmed(outcomes)).missed() == says


@pytest.mark.parametrize(("answer", "told"), [(EVENT, True), (STATUS, True), (CUT, False)])
def test_a_failure_is_told_by_an_error_event_or_a_status(answer, told):
    assert failures([Outcome(True, answer)])[0].told is told


@pytest.mark.parametrize(
    ("found_s", "met"), [(0.5, True), (1.0, True), (1.01, False), (None, False)]
)
def test_a_time_that_never_came_is_missed_too(found_s, met):
    assert at_most("back", found_s, 1.0).met is met


def test_the_table_marks_what_was_missed():
    shown = Findings("t", [none("bad", 2), none("worse", 0), Line("figure", "7")]).table()
    assert list(shown.columns[3].cells) == ["MISSED", "", ""]


def test_scale_has_two_goals():
    assert Found(300, 10.0, 0.05, 100.0).findings().missed() == []
    assert Found(300, 10.5, 0.06, 100.0).findings().missed() == [
        "300 replicas: all ready after: 10.5 s, not <= 10 s",
        "300 replicas: CPU of probing: 0.060 cores, not <= 0.05 cores",
    ]
