"""Sizes, times and shares of a command line."""

import pytest

from gateway.l2.quantities import (
    Share,
    bytes_text,
    parse_bytes,
    parse_seconds,
    parse_share,
    seconds_text,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("900G", 900 * 10**9),
        ("900GB", 900 * 10**9),
        ("1.5Ti", 3 * 2**39),
        ("4096", 4096),
        ("10k", 10_000),
        (" 2 Mi ", 2 * 2**20),
    ],
)
def test_sizes_are_written_as_kubernetes_does(text: str, num_bytes: int):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7d", 604800), ("12h", 43200), ("30min", 1800), ("5m", 300), ("90", 90), ("1.5s", 1.5)],
)
def test_times_have_a_unit_or_are_seconds(text: str, seconds: float):
    assert parse_seconds(text) == seconds


def test_a_share_is_a_ratio_or_a_size():
    assert parse_share("10%") == Share(ratio=0.1)
    assert parse_share("10%").of(500) == 50
    assert parse_share("50Gi").of(1) == 50 * 2**30


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1e9", "nan", "10%"])
def test_what_is_no_size_is_refused(text: str):
    with pytest.raises(ValueError, match="900G"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "7w", "-1", "1Gi"])
def test_what_is_no_time_is_refused(text: str):
    with pytest.raises(ValueError, match="7d"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["101%", "%", "x%", "7d"])
def test_what_is_no_share_is_refused(text: str):
    with pytest.raises(ValueError, match="is n"):
        parse_share(text)


def test_people_read_them_short():
    assert [bytes_text(n) for n in (0, 999, 14_680_064, 2 * 10**12)] == [
        "0 B",
        "999 B",
        "14.7 MB",
        "2.0 TB",
    ]
    assert [seconds_text(s) for s in (45, 90, 7200, 280_000)] == [
        "45 s",
        "1.5 min",
        "2.0 h",
        "3.2 d",
    ]
