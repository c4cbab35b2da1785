"""What the gateway's metrics say of its token ids, and of the events that it followed."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

_CHECKS: Final = re.compile(
    r'^warmroute_token_check_total\{.*result="(\w+)".*\} (\S+)$', re.MULTILINE
)

_EVENTS: Final = re.compile(
    r'^warmroute_kv_event_(\w+?)(?:_total)?\{replica="(\w+)"\} (\S+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Checked:
    """Comparisons of token ids with a replica's /tokenize, as the gateway made them.

    Attributes:
        compared: Prompts.
        different: Of them.
        skipped: Not compared: /tokenize is not the run for them, or it failed.
    """

    compared: int
    different: int
    skipped: int


def checked(page: str) -> Checked:
    """Return what a page of metrics says of comparisons."""
    counts: Counter[str] = Counter()
    for result, number in _CHECKS.findall(page):
        counts[result] += int(float(number))
    different = sum(number for result, number in counts.items() if result.startswith("different"))
    compared = counts["equal"] + different
    return Checked(compared, different, counts.total() - compared)


def events(page: str) -> dict[str, dict[str, int]]:
    """Return what a page of metrics counts of events, by replica and by what is counted."""
    counts_by_replica: dict[str, dict[str, int]] = {}
    for what, replica, number in _EVENTS.findall(page):
        counts_by_replica.setdefault(replica, {})[what] = int(float(number))
    return counts_by_replica
