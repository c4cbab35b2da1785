"""When several engines behind one address show, and when a restart does not look like it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.replicas.facts import EnginePage
from gateway.replicas.shared_address import AddressWatch, SharedAddress

A, B, C = (EnginePage(float(second), (0,), 16, 1000) for second in (1, 2, 3))
SILENT = EnginePage()


def watched(*pages, at_once=False):
    watch = AddressWatch()
    for number, page in enumerate(pages):
        watch.read(page, at_once=at_once and number > 0)
    return watch


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        ((A, A, A), "one engine"),
        ((A, B, B), "a restart"),
        ((B, A), "a restart, on a machine whose clock is behind"),
        ((A, B, C), "two restarts"),
        ((SILENT, A, SILENT, A), "an engine that hides its metrics at times"),
    ],
)
def test_what_is_one_engine(pages, why):
    assert watched(*pages).finding is None, why


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        ((A, B, A), "a restart never goes back"),
        ((A, B, C, A), "three engines in turn"),
        ((A, SILENT, B, SILENT, A), "silence between them changes nothing"),
    ],
)
def test_engines_that_come_back_are_several(pages, why):
    assert watched(*pages).finding is SharedAddress.ENGINES, why


def test_two_engines_within_one_reading_are_several():
    assert watched(A, A, B, at_once=True).finding is SharedAddress.ENGINES
    assert watched(A, A, A, at_once=True).finding is None


def test_engines_that_started_at_once_differ_in_their_blocks():
    twin = EnginePage(A.started_at, (0,), 16, 1001)
    assert watched(A, twin, A).finding is SharedAddress.ENGINES


def test_an_address_is_mended_when_one_engine_answered_for_long():
    watch = watched(A, B, A)
    for _ in range(15):
        watch.read(A)
        watch.read(A, fresh=False)
        assert watch.finding is SharedAddress.ENGINES
    watch.read(A)
    assert watch.finding is None


def test_a_name_with_several_addresses_is_shared_while_it_has_them():
    watch = AddressWatch()
    watch.resolved(2)
    assert watch.finding is SharedAddress.ADDRESSES
    watch.resolved(1)
    assert watch.finding is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_restarts_alone_never_look_like_several_engines(ups):
    """Each reading is of the same process, or of one that nobody saw before."""
    process, watch = 0, AddressWatch()
    for up in ups:
        process += up
        watch.read(EnginePage(float(process + 1), (0,), 16, 1000))
    assert watch.finding is None
