"""Look-ups in Redis: what each life holds of a prompt."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from gateway.index.lives import Lives
from gateway.index.segments import Cut, Names, cut
from gateway.observability.index_metrics import SharedIndexMetrics
from gateway.redis.connection import Reply
from gateway.redis.errors import LinkError
from gateway.redis.link import Call, RedisLink
from gateway.redis.scripts import load_script
from routing.types import BlockKey
from routing.value import value

_READ: Final = load_script("gateway.index", "lua/read.lua", writes=False)
# Blocks that one run of the script looks at, at most: 10 ms even where it has to walk them all.
MAX_CALL_BLOCKS = 2048
# What a look-up found counts for others so long: a hot system prompt is then asked for a few times
# a second by each gateway and not once a request, and events are not much faster.
HOT_FOR_S = 0.2
# Where Redis does not answer in time, what it said last counts, and where prompts were sent from
# here: better than nothing, and most of a cache is still there after so long.
RECALLED_FOR_S = 60.0
# Beginnings of prompts that are kept, the last used ones; each is a few hundred bytes.
MAX_KEPT = 4096

Runs = tuple[int, int, int, int]
"""Leading blocks: reported in L0; or predicted; or in L1; or in the pool. Each at least the one
before."""

POOL: Final = 0
"""The life of the pool that all replicas share."""

_ALL = 0xFFFF  # as the script says it
_WHOLE = b"\xff" * 8  # all levels of an entry have all
_RUNNING = -1  # a level that has not ended yet
_ENTRY = struct.Struct("<IHHHH")
_NO_RUNS: Runs = (0, 0, 0, 0)
_ALL_RUN: Runs = (_RUNNING, _RUNNING, _RUNNING, _RUNNING)
_NOTHING = (0, 0, 0, 0)


@value
class _Kept:
    """What is known of a prompt's beginning.

    Attributes:
        hot_until: It is as good as Redis until then, monotonic seconds.
        so_far: By life.
    """

    hot_until: float
    so_far: Mapping[int, Runs]


class Reader:
    """Asks Redis for prompts, each once for a short time.

    Args:
        link: The way there.
        lives: Whom to ask for.
        metrics: Hits of what is kept.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        link: RedisLink,
        lives: Lives,
        metrics: SharedIndexMetrics,
        now: Callable[[], float],
    ) -> None:
        self._link = link
        self._lives = lives
        self._metrics = metrics
        self._now = now
        self._names = Names(link.namespace)
        self._kept: dict[bytes, _Kept] = {}
        self._packed_version: int | None = None
        self._packed_lives = b""

    async def read(self, keys: Sequence[BlockKey], deadline_s: float) -> Mapping[int, Runs]:
        """Return what lives hold of a prompt; those that hold nothing are left out.

        Where part of the answer is missing, it says what is known for certain.

        Args:
            keys: Of the prompt from its beginning, at least one.
            deadline_s: Seconds to wait.

        Raises:
            LinkError: Nothing is known.
        """
        parts = cut(keys)
        begin, so_far = self._known(parts)
        if begin < parts.num_segments:
            calls, firsts = self._calls(parts, begin, so_far)
            replies = await self._link.call_many(calls, deadline_s)
            # Of what was kept the beginning is known; without it nothing is.
            if isinstance(replies[0], LinkError) and not begin:
                raise replies[0]
            so_far = self._merge(parts, begin, so_far, _by_segment(firsts, replies))
        total = parts.starts[-1]
        return {
            life: _ended(runs, total) for life, runs in (so_far or {}).items() if runs != _NO_RUNS
        }

    def recall(self, keys: Sequence[BlockKey]) -> Mapping[int, Runs]:
        """Return what is remembered of a prompt, for when Redis does not answer.

        Args:
            keys: As of `read`.
        """
        parts = cut(keys)
        stop, so_far = self._look(parts, self._now() - RECALLED_FOR_S)
        total = parts.starts[stop]
        return {life: _ended(runs, total) for life, runs in (so_far or {}).items()}

    def remember(self, parts: Cut, life: int) -> None:
        """Remember that a prompt was sent to a replica, which will hold all of it."""
        now = self._now()
        for stop in _kept_stops(parts.num_segments):
            last = parts.last(stop - 1)
            kept = self._kept.pop(last, None) or _Kept(now, {})
            # It is expected, and not reported: there it is as far as it was known to be.
            reported = kept.so_far.get(life, _NO_RUNS)[0]
            so_far = {**kept.so_far, life: (reported, _RUNNING, _RUNNING, _RUNNING)}
            self._kept[last] = _Kept(max(now, kept.hot_until), so_far)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def forget(self, parts: Cut) -> None:
        """Forget what is remembered of a prompt, which was sent and not run: it is read again."""
        for stop in _kept_stops(parts.num_segments):
            self._kept.pop(parts.last(stop - 1), None)

    def packed_lives(self) -> bytes:
        """Return all lives that count, 4 bytes each, the pool's first."""
        version = self._lives.version
        if version != self._packed_version:
            self._packed_version = version
            self._packed_lives = array("I", [POOL, *self._lives.live()]).tobytes()
        return self._packed_lives

    def _known(self, parts: Cut) -> tuple[int, Mapping[int, Runs] | None]:
        """Return up to which segment a prompt is known, and what of it."""
        stop, so_far = self._look(parts, self._now())
        if stop:
            self._metrics.hot_hits.inc()
        return stop, so_far

    def _look(self, parts: Cut, since: float) -> tuple[int, Mapping[int, Runs] | None]:
        """Return the same of what was hot at a monotonic second."""
        if self._kept:
            for stop in _kept_stops(parts.num_segments):
                kept = self._kept.get(parts.last(stop - 1))
                if kept is not None and kept.hot_until > since:
                    return stop, kept.so_far
        return 0, None

    def _calls(
        self, parts: Cut, begin: int, so_far: Mapping[int, Runs] | None
    ) -> tuple[list[Call], list[int]]:
        """Return the calls that look at segments from one on, and the first segment of each."""
        lives = self.packed_lives()
        if so_far is not None:
            lives = array(
                "I", [life for life, runs in so_far.items() if runs[3] == _RUNNING]
            ).tobytes()
        names, args = self._names, (len(self._names.kind), self._names.predicted_kind, lives)
        calls, firsts = [], []
        first = begin
        while first < parts.num_segments:
            stop = first + 1
            if not self._link.is_cluster:
                most = parts.starts[first] + MAX_CALL_BLOCKS
                stop = max(stop, bisect_right(parts.starts, most) - 1)
            segments = [names.of_blocks(tag) for tag in parts.tags[first:stop]]
            about = (parts.lengths(first, stop), parts.blocks(first, stop))
            calls.append(Call(_READ, segments, (*args, *about)))
            firsts.append(first)
            first = stop
        return calls, firsts

    def _merge(
        self,
        parts: Cut,
        begin: int,
        so_far: Mapping[int, Runs] | None,
        replies: Mapping[int, bytes],
    ) -> Mapping[int, Runs]:
        """Join what segments say; a level that still runs at the end is `_RUNNING`."""
        state = so_far
        before: bytes | None = None
        num_running = -1
        for segment in range(begin, parts.num_segments):
            reply = replies.get(segment, b"")
            # Most segments say what the one before did, "all, of the same lives": nothing ends.
            if reply != before and not _is_whole(reply, num_running):
                state = _join(state, reply, parts.starts[segment])
                num_running = sum(runs[3] == _RUNNING for runs in state.values())
                if not num_running:
                    break
            before = reply
            if not (segment + 1) & segment and state is not None:
                self._keep(parts.last(segment), state)
        return state or {}

    def _keep(self, last: bytes, state: Mapping[int, Runs]) -> None:
        now = self._now()
        kept = self._kept.pop(last, None)  # and to the end of the order
        if kept is None or kept.hot_until <= now:
            kept = _Kept(now + HOT_FOR_S, state)
        self._kept[last] = kept
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]


def _join(state: Mapping[int, Runs] | None, reply: bytes, base: int) -> Mapping[int, Runs]:
    """Return what is known with one segment more, which begins at block `base`.

    Args:
        state: By life; None before the first segment, where every life still runs.
        reply: What the script says of this segment.
        base: Of the segment.
    """
    said = {life: (a, b, c, d) for life, a, b, c, d in _ENTRY.iter_unpack(reply)}
    state = dict.fromkeys(said, _ALL_RUN) if state is None else state
    joined = dict(state)
    for life, runs in state.items():
        if runs[3] == _RUNNING:
            found = said.get(life, _NOTHING)
            # Levels end in their order, so where the lowest goes on, all do.
            if found[runs.index(_RUNNING)] != _ALL:
                joined[life] = _go_on(runs, found, base)
    return joined


def _go_on(runs: Runs, found: Sequence[int], base: int) -> Runs:
    """Return runs that go on as a segment says, where they had not ended before."""
    one, two, three, four = runs
    if one == _RUNNING and found[0] != _ALL:
        one = base + found[0]
    if two == _RUNNING and found[1] != _ALL:
        two = base + found[1]
    if three == _RUNNING and found[2] != _ALL:
        three = base + found[2]
    if four == _RUNNING and found[3] != _ALL:
        four = base + found[3]
    return one, two, three, four


def _is_whole(reply: bytes, num_running: int) -> bool:
    """Return whether a segment says that so many lives have all of it, and names no others."""
    return len(reply) == num_running * _ENTRY.size and reply.count(_WHOLE) == num_running


def _ended(runs: Runs, total: int) -> Runs:
    """Return runs of which those that still ran have the whole prompt."""
    if runs[3] != _RUNNING:
        return runs  # the last level ends last
    if runs[0] == _RUNNING:
        return total, total, total, total
    one, two, three, four = (total if run == _RUNNING else run for run in runs)
    return one, two, three, four


def _kept_stops(num_segments: int) -> Iterator[int]:
    """Yield after how many segments something may be kept, the deepest first: powers of two."""
    stop = 1 << (num_segments.bit_length() - 1)
    while stop:
        yield stop
        stop >>= 1


def _by_segment(firsts: Sequence[int], replies: Sequence[Reply | LinkError]) -> Mapping[int, bytes]:
    found: dict[int, bytes] = {}
    for first, reply in zip(firsts, replies, strict=True):
        if not isinstance(reply, LinkError):
            found |= {first + number: said for number, said in enumerate(reply)}
    return found
