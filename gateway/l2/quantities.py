"""Sizes, times and shares as people write them on a command line, and as they read them. Pure."""

from __future__ import annotations

import re

from routing.value import value

# As Kubernetes writes quantities: G is 10^9, Gi is 2^30.
_BYTES = (
    ("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40), ("Pi", 2**50),
    ("k", 10**3), ("K", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12), ("P", 10**15), ("", 1),
)  # fmt: skip
_SECONDS = (("min", 60), ("ms", 1e-3), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1), ("", 1))
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%]*)")


@value
class Share:
    """A part of a whole: a ratio of it, or bytes.

    Attributes:
        ratio: In [0, 1]; 0 where bytes are given.
        num_bytes: 0 where a ratio is given.
    """

    ratio: float = 0.0
    num_bytes: int = 0

    def of(self, whole_bytes: int) -> int:
        """Return the bytes that this is of a whole of so many."""
        return self.num_bytes or int(whole_bytes * self.ratio)


def parse_bytes(text: str) -> int:
    """Return the bytes that `900G`, `1.5Ti` or `4096` say.

    Raises:
        ValueError: None of them.
    """
    number, unit = _split(text, "900G, 1.5Ti or a number of bytes")
    factors = dict(_BYTES)
    if unit.removesuffix("B") not in factors:
        raise ValueError(f"{text!r} is no size: 900G, 1.5Ti or a number of bytes")
    return round(number * factors[unit.removesuffix("B")])


def parse_seconds(text: str) -> float:
    """Return the seconds that `7d`, `12h`, `30min` or `90` say.

    Raises:
        ValueError: None of them.
    """
    number, unit = _split(text, "7d, 12h, 30min or a number of seconds")
    factors = dict(_SECONDS)
    if unit not in factors:
        raise ValueError(f"{text!r} is no time: 7d, 12h, 30min or a number of seconds")
    return number * factors[unit]


def parse_share(text: str) -> Share:
    """Return the share that `10%` or `50Gi` says.

    Raises:
        ValueError: Neither.
    """
    if not text.endswith("%"):
        return Share(num_bytes=parse_bytes(text))
    number, unit = _split(text, "10% or 50Gi")
    if unit != "%" or number > 100:
        raise ValueError(f"{text!r} is no share: 10% or 50Gi")
    return Share(ratio=number / 100)


def bytes_text(num_bytes: float) -> str:
    """Return a size for people, in powers of ten: `14.7 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def seconds_text(seconds: float) -> str:
    """Return a time for people: `3.2 d`, `45 s`."""
    for unit_s, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {name}"
    return f"{seconds:.0f} s"


def _split(text: str, forms: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not one of {forms}")
    return float(found[1]), found[2]
