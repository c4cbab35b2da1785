"""Made workloads: the same for a seed, and shaped as they say."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from loadtests.workloads import made
from loadtests.workloads.made import Stream
from loadtests.workloads.sessions import Session

BLOCK_TOKENS = 16


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    folder = Path(made.__file__).parents[1] / "demo_model"
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_a_seed_gives_the_same_sessions():
    assert made.workload(seed=3, seconds=5) == made.workload(seed=3, seconds=5)
    assert made.workload(seed=3, seconds=5) != made.workload(seed=4, seconds=5)


def test_a_kind_keeps_its_sessions_when_others_change():
    alone = made.workload(3, 5, (Stream("rag", 2.0),))
    beside = made.workload(3, 5, (Stream("hot", 1.0), Stream("rag", 2.0)))
    assert [session for session in beside if session.kind == "rag"] == alone


def test_sessions_start_in_order_inside_the_run_and_have_unique_names():
    sessions = made.workload(1, 20)
    starts = [session.start_s for session in sessions]
    assert starts == sorted(starts)
    assert starts[0] > 0
    assert starts[-1] < 20
    assert max(s.start_s for s in sessions if s.kind == "chat") < 20 - 10
    assert len({session.session_id for session in sessions}) == len(sessions)


def test_starts_are_a_poisson_process():
    gaps = [
        later.start_s - earlier.start_s
        for earlier, later in pairwise(made.workload(1, 100, (Stream("one_shot", 8.0),)))
    ]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 8, rel=0.1)
    # An exponential distribution has a deviation equal to its mean; regular arrivals have none.
    assert variance**0.5 == pytest.approx(mean, rel=0.2)


def test_the_demo_mix_has_every_kind_that_it_names():
    counts = Counter(session.kind for session in made.workload(1, 26))
    assert set(counts) == {"chat", "rag", "agent", "hot", "one_shot"}


def test_kinds_have_the_turns_that_they_say():
    common = made.shared(1)
    sessions = made.workload(1, 60, tuple(Stream(kind, 1.0) for kind in made.MAKERS))
    turns_by_kind = {
        kind: {len(session.turns) for session in sessions if session.kind == kind}
        for kind in made.MAKERS
    }
    assert turns_by_kind["chat"] <= {4, 5, 6, 7}
    assert turns_by_kind["agent"] <= {4, 5, 6}
    for kind in ("rag", "hot", "one_shot", "embeddings"):
        assert turns_by_kind[kind] == {1}
    asked = [s.turns[0].messages[1]["content"] for s in sessions if s.kind == "rag"]
    assert all(any(document in ask for document in common.documents) for ask in asked)
    assert all(ask.startswith("Document:") and ask.endswith("?") for ask in asked)


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        ("hot", 0.90, 0.99),
        ("rag", 0.55, 0.95),
        ("agent", 0.85, 0.98),
        ("chat", 0.65, 0.90),
        ("one_shot", 0.0, 0.02),
    ],
)
def test_prompts_share_the_prefixes_that_their_kind_says(kind, least, most, tokenizer: Tokenizer):
    """The share of tokens in blocks that an earlier prompt began with, as one cache would see."""
    seen: set[tuple[int, ...]] = set()
    shared = total = 0
    for session in made.workload(1, 30, (Stream(kind, 1.5),)):
        for ids in prompts(session, tokenizer):
            prefixes = [tuple(ids[:end]) for end in range(BLOCK_TOKENS, len(ids), BLOCK_TOKENS)]
            hit = sum(prefix in seen for prefix in prefixes)
            seen.update(prefixes)
            shared += hit * BLOCK_TOKENS
            total += len(ids)
    assert least <= shared / total <= most


def prompts(session: Session, tokenizer: Tokenizer) -> list[list[int]]:
    replies = [f" a reply to turn {n} of {session.session_id}" for n in range(len(session.turns))]
    texts = []
    for index in range(len(session.turns)):
        body = session.request(index, replies[:index], "m", 0.0).body
        parts = [str(body.get("tools", ""))]
        parts += [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>" for m in body["messages"]]
        texts.append("\n".join(parts))
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]
