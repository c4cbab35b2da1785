"""What an LMCache server counts of its own look-ups."""

import re
from collections import Counter
from typing import Final

from loadtests.conformance_l2.figures import Way

# One line a salt. Tokens of whole chunks, from the prompt's start.
_FOUND: Final = re.compile(
    r"^lmcache_mp_lookup_hit_(l1|l2)_tokens_total(?:\{.*\})? (\S+)$", re.MULTILINE
)


def found_tokens(page: str) -> Counter[Way]:
    """Return the prompt tokens found so far by tier, of all salts."""
    tokens: Counter[Way] = Counter()
    for tier, number in _FOUND.findall(page):
        tokens[Way(tier.upper())] += int(float(number))
    return tokens
