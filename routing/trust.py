"""Whether what is believed of a replica's cache may be acted on, by the engine's own word.

An index can be wrong in ways that no event shows: another template or tokenizer than the engine's,
a cache that was cleared while nothing ran, an engine that says nothing at all. What an engine says
of each request that it finished shows all of them (docs/adr/0027).
"""

from __future__ import annotations

# Cached over expected tokens below which a request contradicts what was believed. An eviction
# between the decision and the prefill takes the end of a prompt, seldom half of it.
MISS_RATIO = 0.5
# From here on it agrees. What lies in between says nothing.
AGREE_RATIO = 0.8
# Contradictions in a row: one is an eviction, two are chance on a full cache.
MISSES_TO_DISTRUST = 4
AGREEMENTS_TO_TRUST = 3
# A distrusted replica gets no prompts for what it may hold, and so little to agree about. After
# this long it is believed again, and a single contradiction takes that back.
PROBATION_AFTER_S = 60.0


class Trust:
    """What one replica's word of its cached tokens says about our belief.

    Attributes:
        is_trusted: Whether decisions may count on what it is believed to hold.
    """

    def __init__(self) -> None:
        self.is_trusted = True
        self._num_misses = 0
        self._num_agreements = 0
        self._probation_at = 0.0

    def heard(self, expected_tokens: int, cached_tokens: int, now: float) -> bool:
        """Take what the engine said of one request.

        Args:
            expected_tokens: Prompt tokens that it was believed to have cached, over all tiers, at
                the time of the decision; also where the decision did not count on them.
            cached_tokens: Prompt tokens that it says were cached.
            now: Monotonic seconds.

        Returns:
            Whether `is_trusted` changed.
        """
        was_trusted = self.is_trusted
        if not self.is_trusted and now >= self._probation_at:
            self.is_trusted, self._num_misses = True, MISSES_TO_DISTRUST - 1
        if expected_tokens and cached_tokens < MISS_RATIO * expected_tokens:
            self._miss(now)
        elif expected_tokens and cached_tokens >= AGREE_RATIO * expected_tokens:
            self._agree()
        return self.is_trusted is not was_trusted

    def _miss(self, now: float) -> None:
        self._num_agreements = 0
        self._num_misses += 1
        if self._num_misses >= MISSES_TO_DISTRUST:
            self.is_trusted = False
            self._probation_at = now + PROBATION_AFTER_S

    def _agree(self) -> None:
        self._num_agreements += 1
        if self.is_trusted or self._num_agreements >= AGREEMENTS_TO_TRUST:
            self.is_trusted, self._num_misses = True, 0


# Requests in a row that must have stored a block, and no event came.
REQUESTS_TO_SILENCE = 10
# Events come with the step that stores, and a lost one is asked for after 2 s of quiet.
SILENCE_AFTER_S = 5.0


class Silence:
    """Whether a replica that should publish its KV events does not.

    Attributes:
        is_silent: Since `REQUESTS_TO_SILENCE` requests over `SILENCE_AFTER_S` seconds.
    """

    def __init__(self) -> None:
        self.is_silent = False
        self._num_batches = -1
        self._num_requests = 0
        self._since = 0.0

    def misses(self, num_batches: int) -> bool:
        """Return whether events that must have been sent did not come, so far.

        That begins with the first request that stored a block of which nothing was told: long
        before a replica counts as silent, which takes its rung.

        Args:
            num_batches: Batches of events that came so far.
        """
        return self._num_requests > 1 and num_batches == self._num_batches

    def served(self, num_batches: int, now: float) -> bool:
        """Take a request that was served and must have stored a block.

        Args:
            num_batches: Batches of events that came so far.
            now: Monotonic seconds.

        Returns:
            Whether `is_silent` changed.
        """
        was_silent = self.is_silent
        if num_batches != self._num_batches:
            self._num_batches, self._num_requests, self._since = num_batches, 0, now
        self._num_requests += 1
        is_long = now - self._since >= SILENCE_AFTER_S
        self.is_silent = self._num_requests > REQUESTS_TO_SILENCE and is_long
        return self.is_silent is not was_silent
