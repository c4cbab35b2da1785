"""What an ended request teaches about prices."""

from types import SimpleNamespace

import pytest

from gateway.observability.lessons import learn_prices
from gateway.observability.record import RequestRecord
from routing.types import PrefixMatch, ReplicaLoad


def learned(match, cached_tokens, stream=True):
    """Return the tokens by tier that a request taught, or None."""
    seen = []
    record = RequestRecord("id", "/v1/completions", 0.0, stream=stream, replica="a", ttft_s=0.5)
    record.choice = SimpleNamespace(model=SimpleNamespace(shared=object(), observe=seen.append))
    record.prompt = SimpleNamespace(num_tokens=2000)
    chosen = SimpleNamespace(candidate=SimpleNamespace(load=ReplicaLoad()))
    record.decision = SimpleNamespace(replica="a", match_of=lambda _: match, chosen=chosen)
    learn_prices(record, cached_tokens)
    return [(one.l0_tokens, one.l1_tokens, one.l2_tokens) for one in seen]


@pytest.mark.parametrize(
    ("match", "cached_tokens", "expected", "why"),
    [
        (PrefixMatch(64, 0, 512), 576, [(64, 0, 512)], "as foreseen"),
        (PrefixMatch(64, 0, 512), 600, [(64, 0, 512)], "a little more than foreseen"),
        (PrefixMatch(0, 0, 256), 0, [(0, 0, 0)], "a chunk that the pool lost was not loaded"),
        (PrefixMatch(64, 256, 512), 576, [(64, 256, 256)], "the farthest tier lost it"),
        (PrefixMatch(64, 256, 16), 100, [(64, 36, 0)], "and the one before it"),
        (PrefixMatch(64, 0, 512), 64, [], "nobody knows which tier served what"),
    ],
)
def test_only_what_was_loaded_teaches_what_a_load_takes(match, cached_tokens, expected, why):
    assert learned(match, cached_tokens) == expected, why


def test_an_answer_that_is_no_stream_does_not_tell_when_its_first_token_came():
    assert learned(PrefixMatch(64, 0, 512), 576, stream=False) == []
