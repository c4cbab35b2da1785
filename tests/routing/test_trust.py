"""When an engine's own word takes a replica's entries away, and when it gives them back."""

import pytest

from routing.trust import (
    AGREEMENTS_TO_TRUST,
    MISSES_TO_DISTRUST,
    PROBATION_AFTER_S,
    REQUESTS_TO_SILENCE,
    SILENCE_AFTER_S,
    Silence,
    Trust,
)

MISS, AGREE, BETWEEN, NOTHING = (100, 0), (100, 96), (100, 60), (0, 0)


@pytest.mark.parametrize(
    ("history", "expected", "why"),
    [
        ([], True, "trusted until there is a reason"),
        ([MISS] * 3, True, "three may be evictions"),
        ([MISS] * 4, False, "four in a row"),
        ([MISS, MISS, AGREE, MISS, MISS, MISS], True, "an agreement starts the count anew"),
        ([MISS, BETWEEN, MISS, NOTHING, MISS, MISS], False, "what says nothing changes nothing"),
        ([(0, 4096)] * 9, True, "more than expected is no contradiction"),
        ([MISS] * 4 + [AGREE] * 2, False, "two agreements may be chance"),
        ([MISS] * 4 + [AGREE] * 3, True, "three in a row"),
        ([MISS] * 4 + [AGREE, AGREE, MISS, AGREE], False, "a contradiction in between"),
        ([MISS] * 4 + [AGREE] * 3 + [MISS] * 3, True, "trusted as before"),
    ],
)
def test_trust_after_a_history(history, expected, why):
    trust = Trust()
    for number, (predicted, cached) in enumerate(history):
        was_trusted = trust.is_trusted
        changed = trust.heard(predicted, cached, float(number))
        assert changed == (trust.is_trusted != was_trusted)
    assert trust.is_trusted is expected, why


def test_after_a_while_it_is_believed_again_and_one_contradiction_takes_that_back():
    trust = Trust()
    for _ in range(MISSES_TO_DISTRUST):
        trust.heard(*MISS, 0.0)
    assert not trust.heard(*NOTHING, PROBATION_AFTER_S - 1)
    assert trust.heard(*NOTHING, PROBATION_AFTER_S)
    assert trust.is_trusted
    assert trust.heard(*MISS, PROBATION_AFTER_S + 1)
    assert not trust.is_trusted
    assert trust.heard(*AGREE, 2 * PROBATION_AFTER_S + 1), "on probation, one agreement is enough"
    for _ in range(MISSES_TO_DISTRUST - 1):
        assert not trust.heard(*MISS, 3 * PROBATION_AFTER_S)


def test_the_counts_of_the_rule():
    assert (MISSES_TO_DISTRUST, AGREEMENTS_TO_TRUST) == (4, 3), "the table above is for these"


def test_a_replica_is_silent_after_some_requests_over_some_time_without_a_batch():
    silence = Silence()
    for number in range(REQUESTS_TO_SILENCE):
        assert not silence.served(0, float(number))
    assert silence.served(0, SILENCE_AFTER_S + REQUESTS_TO_SILENCE)
    assert silence.is_silent
    assert silence.served(1, 99.0), "a batch came"
    assert not silence.is_silent


def test_one_request_that_nothing_was_told_of_means_that_events_are_missing():
    silence = Silence()
    assert not silence.misses(0), "nothing was served"
    silence.served(3, 0.0)
    assert not silence.misses(3), "the last of these batches may be its own"
    silence.served(3, 0.1)
    assert silence.misses(3)
    assert not silence.misses(4), "one came"
    silence.served(4, 0.2)
    assert not silence.misses(4)


def test_many_requests_at_once_are_no_silence():
    silence = Silence()
    assert not any(silence.served(7, 0.0) for _ in range(5 * REQUESTS_TO_SILENCE))
    assert not silence.served(8, 2 * SILENCE_AFTER_S)
