"""What is kept of prompts stays within its bound, whoever uses it."""

import threading
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from gateway.prompt.bytecache import ENTRY_BYTES, ByteCache


def sized(number):
    """A bound that fits so many entries with names and contents of one byte."""
    return number * (ENTRY_BYTES + 2)


def test_the_least_recently_used_goes_first():
    cache = ByteCache(sized(2))
    cache.put_all([(b"a", b"1"), (b"b", b"2")])
    assert cache.get(b"a") == b"1"
    cache.put(b"c", b"3")
    assert cache.get_all([b"a", b"b", b"c"]) == [b"1", None, b"3"]
    assert (cache.hits, cache.misses) == (3, 1)


def test_what_is_larger_than_the_bound_is_not_kept_and_pushes_nothing_out():
    cache = ByteCache(sized(1))
    cache.put(b"a", b"1")
    cache.put(b"b", b"x" * sized(1))
    assert cache.get_all([b"a", b"b"]) == [b"1", None]


def test_a_smaller_bound_counts_at_once():
    cache = ByteCache(sized(3))
    cache.put_all([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    cache.resize(sized(1))
    assert cache.get_all([b"a", b"b", b"c"]) == [None, None, b"3"]
    cache.resize(0)
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_tags_are_all_different():
    cache = ByteCache(0)
    assert len({cache.new_tag() for _ in range(1000)}) == 1000


@given(
    st.dictionaries(st.binary(min_size=1, max_size=2), st.binary(max_size=300)),
    st.integers(0, 3000),
)
def test_what_it_counts_is_what_it_holds(entries, max_bytes):
    cache = ByteCache(max_bytes)
    cache.put_all([*entries.items()] * 2)  # a name says all about its content
    held = cache._content_by_name
    assert cache.num_bytes == sum(len(n) + len(c) + ENTRY_BYTES for n, c in held.items())
    assert cache.num_bytes <= max_bytes
    assert all(entries[name] == content for name, content in held.items())


def test_the_bound_is_on_real_memory():
    """Entries of typical sizes take no more than what is counted for them."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache = ByteCache(4_000_000)
        for number in range(20_000):
            cache.put(number.to_bytes(20, "big"), bytes(200 + number % 2000))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert cache.num_bytes > 3_990_000
    assert taken <= 4_000_000


def test_many_threads_may_use_it_at_once():
    cache = ByteCache(sized(50))
    wrong = []

    def use(seed):
        for number in range(3000):
            name = bytes([(number * seed) % 97])
            found = cache.get(name)
            if found not in (None, name * 2):
                wrong.append(found)
            cache.put(name, name * 2)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (1, 5, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    held = cache._content_by_name
    assert cache.num_bytes == sum(len(n) + len(c) + ENTRY_BYTES for n, c in held.items())
