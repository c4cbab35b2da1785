"""Whether a model's token ids, as they are computed here, are those of its engines. Pure.

Some prompts are compared with what a replica says. A difference is counted, and several of them
mean that the ids are worth nothing: then prompts are routed by their first bytes until replicas
and gateway agree again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

# Of the last 20 comparisons two may not differ: one can be an engine that is just being replaced.
NUM_REMEMBERED = 20
MAX_DIFFERENCES = 1
# So many in a row have to be equal before ids are used again.
EQUAL_TO_RETURN = 3

EQUAL = "equal"
SKIPPED = "skipped"
FAILED = "failed"
REASONS = ("start", "tools", "day", "count", "text")
"""Why ids differ, as far as that can be told; the results are `different_` and one of these."""


def difference(
    here: Sequence[int], there: Sequence[int], *, has_tools: bool, is_dated: bool
) -> str:
    """Return one of `REASONS` for two lists of token ids that differ.

    Args:
        here: As computed here.
        there: As the replica says.
        has_tools: The request brings tools: whether they are shown depends on the engine's flags.
        is_dated: The day is in the prompt, and the engine's clock may be on another one.
    """
    if is_dated:
        return "day"
    if here[:1] != there[:1]:
        return "start"
    if has_tools:
        return "tools"
    return "count" if len(here) != len(there) else "text"


class Trust:
    """What comparisons say of one model's token ids."""

    def __init__(self) -> None:
        self._differed = deque[bool](maxlen=NUM_REMEMBERED)
        self._num_equal = 0
        self.is_given = True
        """Whether ids are used."""

    def note(self, result: str) -> bool:
        """Note the result of one comparison, and return whether that changed `is_given`.

        Args:
            result: `equal`, or `different_` and a reason; others say nothing.
        """
        if result in (SKIPPED, FAILED):
            return False
        differs = result != EQUAL
        self._differed.append(differs)
        self._num_equal = 0 if differs else self._num_equal + 1
        before = self.is_given
        if not before and self._num_equal >= EQUAL_TO_RETURN:
            self._differed.clear()
            self.is_given = True
        elif before and sum(self._differed) > MAX_DIFFERENCES:
            self.is_given = False
        return self.is_given is not before
