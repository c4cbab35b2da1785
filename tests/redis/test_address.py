"""What a URL says about where Redis is."""

import pytest

from gateway.redis.address import Address, Credentials, Endpoint, Kind, parse_url


@pytest.mark.parametrize(
    ("url", "address", "credentials"),
    [
        ("redis://r", Address(Kind.SINGLE, (Endpoint("r", 6379),)), Credentials()),
        (
            "rediss://u:p%40w@r.example:7000/3",
            Address(Kind.SINGLE, (Endpoint("r.example", 7000),), tls=True, database=3),
            Credentials("u", "p@w"),
        ),
        ("redis://:pw@[::1]:1", Address(Kind.SINGLE, (Endpoint("::1", 1),)), Credentials("", "pw")),
        ("unix:///run/r.sock", Address(Kind.SINGLE, (Endpoint("/run/r.sock", 0),)), Credentials()),
        (
            "unix://:pw@/run/r.sock?db=2",
            Address(Kind.SINGLE, (Endpoint("/run/r.sock", 0),), database=2),
            Credentials("", "pw"),
        ),
        (
            "redis+sentinel://a,b:1/mymaster/2",
            Address(Kind.SENTINEL, (Endpoint("a", 26379), Endpoint("b", 1)), False, "mymaster", 2),
            Credentials(),
        ),
        (
            "rediss+cluster://a:1,b/",
            Address(Kind.CLUSTER, (Endpoint("a", 1), Endpoint("b", 6379)), tls=True),
            Credentials(),
        ),
    ],
)
def test_a_url_says_where(url, address, credentials):
    assert parse_url(url) == (address, credentials)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://r", "must begin with one of"),
        ("redis:r", "must begin with one of"),
        ("redis://", "HOST"),
        ("redis://a,b", "one host"),
        ("redis://r:99999", "ports from 1"),
        ("redis://r/x", "number of the database"),
        ("redis://r/1/2", "number of the database"),
        ("redis+sentinel://r", "name the primary"),
        ("redis+cluster://r/1", "one database only"),
        ("unix://run/r.sock", "absolute path"),
        ("unix:///r.sock?user=x", "db=N"),
    ],
)
def test_what_is_no_url_is_told_without_showing_it(url, says):
    with pytest.raises(ValueError, match=says) as refused:
        parse_url(url.replace("://", "://u:secret@"))
    assert "secret" not in str(refused.value)


def test_credentials_never_show():
    assert "secret" not in repr(Credentials("user", "secret"))


def test_endpoints_show_as_one_writes_them():
    assert [str(Endpoint("::1", 1)), str(Endpoint("a", 2)), str(Endpoint("/s", 0))] == [
        "[::1]:1",
        "a:2",
        "/s",
    ]
