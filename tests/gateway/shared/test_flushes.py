"""A flush that one gateway was asked for reaches the others, whenever they hear of it."""

from collections.abc import Mapping

import msgspec
import pytest

from gateway.shared.flushes import Flushes
from gateway.shared.word import Word, decode_word, encode_word
from tests.support.redis_servers import LogLines


class Pools:
    """Stands for `SharedPools`: how much is known, by model."""

    def __init__(self, **known):
        self.known = known

    def get(self, model):
        return self.known.get(model)

    def flush(self, model=None):
        flushed = {key: count for key, count in self.known.items() if model in (None, key)}
        self.known |= dict.fromkeys(flushed, 0)
        return flushed


class Gateway:
    """One gateway's flushes, with its pools and its clock."""

    def __init__(self, seconds=1000.0, **known):
        self.pools, self.log, self.seconds = Pools(**known), LogLines(), seconds
        self.flushes = Flushes(self.pools, self.log, lambda: self.seconds)
        self.flush = self.flushes.flush

    def hear(self, *others):
        """Hear what other gateways would tell now, as it comes through Redis."""
        words = {
            f"g{number}": (0.0, decode_word(encode_word(Word(flushed=other.flushes.tell()))))
            for number, other in enumerate(others)
        }
        self.flushes.hear(words)

    def knows(self, model="m"):
        return self.pools.known[model]


def test_a_flush_is_taken_once_and_told_in_the_log():
    asked, other = Gateway(m=3), Gateway(m=5)
    assert asked.flush("m") == {"m": 3}
    other.hear(asked)
    assert other.knows() == 0
    told = {"event": "flushed_elsewhere", "tier": "L2", "gateway": "g0", "model": "m", "chunks": 5}
    assert other.log.lines == [told]
    other.pools.known["m"] = 2
    other.hear(asked)
    assert other.knows() == 2, "heard before"
    asked.flush("m")
    other.hear(asked)
    assert other.knows() == 0, "this one is another, also within the same millisecond"


def test_the_gateway_that_was_asked_does_not_hear_its_own_flush_back():
    asked, other = Gateway(m=3), Gateway(m=5)
    asked.flush()
    other.hear(asked)
    asked.pools.known["m"] = 4
    asked.hear(other)
    assert asked.knows() == 4


def test_a_flush_concerns_the_models_that_it_names():
    asked, other = Gateway(m=3, n=3), Gateway(m=5, n=6)
    asked.flush("n")
    other.hear(asked)
    assert other.pools.known == {"m": 5, "n": 0}
    asked.flush()
    other.hear(asked)
    assert other.pools.known == {"m": 0, "n": 0}


def test_a_flush_reaches_who_was_cut_off_through_who_was_not():
    asked, heard, cut_off = Gateway(m=3), Gateway(m=5), Gateway(m=7)
    asked.flush("m")
    heard.hear(asked)
    cut_off.hear(heard)  # the one that was asked is gone
    assert cut_off.knows() == 0


@pytest.mark.parametrize("seconds", [1.0, 1_000_000.0])
def test_clocks_of_gateways_that_hear_each_other_do_not_matter(seconds):
    first, second, third = Gateway(m=1), Gateway(seconds, m=1), Gateway(m=1)
    first.flush("m")
    second.hear(first)
    third.hear(first, second)
    third.pools.known["m"] = second.pools.known["m"] = 5
    second.flush("m")
    third.hear(first, second)
    assert third.knows() == 0


def test_flushes_of_gateways_that_could_not_hear_each_other_reach_both():
    first, second = Gateway(1000.0, m=1), Gateway(1001.0, m=1)
    first.flush("m")
    second.flush("m")
    first.pools.known["m"] = second.pools.known["m"] = 5
    first.hear(second)
    second.hear(first)
    assert (first.knows(), second.knows()) == (0, 5), "the later one was told what it had forgotten"


def test_a_flush_of_a_pool_that_is_not_here_waits_for_it_and_is_not_told():
    asked, other = Gateway(m=3), Gateway()
    asked.flush("m")
    other.hear(asked)
    assert other.flushes.tell() == {}
    other.pools.known["m"] = 5
    other.hear(asked)
    assert other.knows() == 0
    del asked.pools.known["m"]
    assert asked.flushes.tell() == {}, "a reload took it away"


class FormerWord(msgspec.Struct, array_like=True, frozen=True):
    """A word as the release before flushes were told."""

    loads: Mapping[str, tuple[int, float, int]] = {}
    ejected: Mapping[str, tuple[int, int, str]] = {}
    doubts: Mapping[str, tuple[int, float]] = {}
    wants: tuple[str, ...] = ()
    taken: Mapping[bytes, int] = {}


def test_a_gateway_of_the_release_before_reads_the_rest_and_is_read():
    word = Word(loads={"r0": (3, 0.5, 100)}, wants=("r2",), taken={b"k": 2}, flushed={"m": 7})
    former = msgspec.msgpack.decode(encode_word(word), type=FormerWord)
    assert former == FormerWord(loads={"r0": (3, 0.5, 100)}, wants=("r2",), taken={b"k": 2})
    assert decode_word(msgspec.msgpack.encode(former)) == Word(
        loads=word.loads, wants=word.wants, taken=word.taken
    )
