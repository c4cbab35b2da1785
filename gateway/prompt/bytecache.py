"""What is worth keeping of prompts: token ids of texts, and block keys, in one bound of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock

# Memory of an entry besides its content: two bytes objects (33 bytes each, rounded up to 16) and a
# place in an ordered dict. Measured with tracemalloc: 240 to 290 bytes, by how full the dict is.
ENTRY_BYTES = 288


class ByteCache:
    """Byte strings by name, bounded by the memory they take; the least recently used go first.

    May be used by any thread. A name says all about its content, so nobody has to invalidate
    anything, and equal content of different prompts is kept once.

    Args:
        max_bytes: Bound on the memory of all entries.

    Attributes:
        num_bytes: Memory that the entries take.
        hits: Names that were asked for and known.
        misses: Names that were asked for in vain.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._content_by_name: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()
        self._num_tags = 0
        self.num_bytes = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._content_by_name)

    @property
    def max_bytes(self) -> int:
        """Bound on the memory of all entries."""
        return self._max_bytes

    def resize(self, max_bytes: int) -> None:
        """Set another bound; what is over it goes at once."""
        with self._lock:
            self._max_bytes = max_bytes
            self._evict()

    def new_tag(self) -> bytes:
        """Return four bytes that no other user of the cache has got, to end its names with."""
        with self._lock:
            self._num_tags += 1
            return self._num_tags.to_bytes(4, "little")

    def get(self, name: bytes) -> bytes | None:
        """Return an entry's content, or None."""
        return self.get_all((name,))[0]

    def get_all(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return the contents of entries, None for those that are not known."""
        entries = self._content_by_name
        found: list[bytes | None] = []
        with self._lock:
            for name in names:
                content = entries.get(name)
                if content is not None:
                    entries.move_to_end(name)
                found.append(content)
            missed = found.count(None)
            self.misses += missed
            self.hits += len(found) - missed
        return found

    def put(self, name: bytes, content: bytes) -> None:
        """Keep an entry; one that is larger than the bound is not kept."""
        self.put_all(((name, content),))

    def put_all(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep entries; see `put`."""
        with self._lock:
            for name, content in entries:
                size = _size(name, content)
                if size > self._max_bytes:
                    continue
                before = self._content_by_name.pop(name, None)
                if before is not None:
                    self.num_bytes -= _size(name, before)
                self._content_by_name[name] = content
                self.num_bytes += size
            self._evict()

    def _evict(self) -> None:
        while self.num_bytes > self._max_bytes:
            name, content = self._content_by_name.popitem(last=False)
            self.num_bytes -= _size(name, content)


def _size(name: bytes, content: bytes) -> int:
    return len(name) + len(content) + ENTRY_BYTES
