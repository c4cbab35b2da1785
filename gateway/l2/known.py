"""What is known of the chunks of a pool: for how long, and how much of it is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from gateway.l2.chunks import Digest
from routing.types import BlockKey
from routing.value import value


@value
class _Known:
    is_there: bool
    until: float
    digest: Digest | None
    refuted: bool = False


class KnownChunks:
    """Chunks that were looked up, least recently used first to go.

    Args:
        max_chunks: Kept at most.
        present_s: How long one that was there counts as there.
        absent_s: How long one that was not counts as absent.
        now: Monotonic seconds.
    """

    def __init__(
        self, max_chunks: int, present_s: float, absent_s: float, now: Callable[[], float]
    ) -> None:
        self._max_chunks = max_chunks
        self._present_s = present_s
        self._absent_s = absent_s
        self._now = now
        self._known: OrderedDict[BlockKey, _Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def span(self, keys: Sequence[BlockKey]) -> tuple[int, int, Digest | None]:
        """Return what is known of a prompt's chunks.

        What is behind a chunk that is not there counts for nothing, as no engine loads it.

        Returns:
            How many leading ones are there; the number of the first one that is not (the number of
            all where none is known to be missing); and the hash of the last one that is there,
            where it is known.
        """
        now, get = self._now(), self._known.get
        last, num_there, missing = None, 0, len(keys)
        for number, key in enumerate(keys):
            known = get(key)
            if known is None or known.until <= now:
                continue
            if not known.is_there:
                missing = number
                break
            last, num_there = known, number + 1
        if last is None:
            return 0, missing, None
        self._known.move_to_end(keys[num_there - 1])
        return num_there, missing, last.digest

    def note(self, key: BlockKey, *, is_there: bool, digest: Digest | None = None) -> None:
        """Note what a look-up found."""
        until = self._now() + (self._present_s if is_there else self._absent_s)
        self._put(key, _Known(is_there, until, digest))

    def refute(self, keys: Sequence[BlockKey], absent_s: float) -> None:
        """Count chunks as absent for a time, whatever a look-up would find."""
        until = self._now() + absent_s
        for key in keys:
            self._put(key, _Known(is_there=False, until=until, digest=None, refuted=True))

    def written(self, keys: Sequence[BlockKey]) -> None:
        """Forget that chunks were absent, as a replica computed them; refuted ones stay so."""
        for key in keys:
            known = self._known.get(key)
            if known is not None and not known.is_there and not known.refuted:
                del self._known[key]

    def flush(self) -> int:
        """Forget everything, and return how much that was."""
        count = len(self._known)
        self._known.clear()
        return count

    def _put(self, key: BlockKey, known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > self._max_chunks:
            self._known.popitem(last=False)
