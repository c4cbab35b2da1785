"""The order of batches, as a table of histories."""

import pytest

from gateway.kvevents.sequence import Sequence, Step


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ([("live", 0, Step.APPLY), ("live", 1, Step.APPLY)], "from the start"),
        ([("live", 0, Step.APPLY), ("live", 2, Step.GAP)], "one was lost"),
        ([("live", 5, Step.GAP)], "joined late"),
        (
            [("replay", 0, Step.APPLY), ("replay", 1, Step.APPLY), ("live", 1, Step.SKIP),
             ("live", 2, Step.APPLY)],
            "a replay ran ahead of the live stream",
        ),
        ([("live", 0, Step.APPLY), ("live", 1, Step.APPLY), ("live", 0, Step.RESTART)], "restart"),
        ([("live", 0, Step.APPLY), ("live", 0, Step.RESTART)], "restart after a single batch"),
        ([("live", 0, Step.APPLY), ("replay", 0, Step.SKIP)], "asked for too much"),
    ],
)  # fmt: skip
def test_steps(history, why):
    sequence = Sequence()
    for kind, number, expected in history:
        step = sequence.live(number) if kind == "live" else sequence.replayed(number)
        assert step is expected, why
        if step is Step.APPLY:
            sequence.applied(number)


def test_after_a_restart_numbers_begin_at_0():
    sequence = Sequence()
    for number in range(5):
        sequence.live(number)
        sequence.applied(number)
    assert sequence.live(1) is Step.RESTART
    sequence.restart()
    assert sequence.expected == 0
    assert sequence.live(1) is Step.GAP, "batch 0 of the new process was missed"
