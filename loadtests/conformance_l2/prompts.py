"""Forty prompts that cross from one replica to the other, and some that must not be served."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from loadtests.conformance.cases import assistant, user
from loadtests.conformance.cases_chat import prose
from loadtests.conformance.traffic import MODEL

Body = Mapping[str, Any]

# A few tokens are enough: the prompt is what is cached.
_ANSWER_TOKENS: Final = 4
# Words of the made prose: SmolLM2 makes 1.7 tokens of one.
_LONG_WORDS: Final = 1_050
_WORDS: Final = (170, 230, 300, 380, 470, 560, 650, 750)
_FAMILY_WORDS: Final = 450
_MEMBER_WORDS: Final = 220
_TURN_WORDS: Final = 180
_NUM_TIMED: Final = 8
_NUM_PLAIN: Final = 16
_NUM_FAMILIES: Final = 2
_NUM_MEMBERS: Final = 3
_NUM_SALTED: Final = 4
_NUM_EXACT: Final = 3
_NUM_MOVED: Final = 3


@dataclass(frozen=True, slots=True)
class Crossing:
    """One prompt that a replica computes and then the other one is asked for.

    Attributes:
        kind: What it tries.
        name: Unique.
        written: Asked from the writer.
        read: Asked from the reader, which has not seen it.
        family: Crossings of one family begin alike, so that some of their chunks are there before;
            empty where the beginning is the prompt's own.
        timed: Whether the writer is asked twice more, for the times from L0 and L1.
    """

    kind: str
    name: str
    written: Body
    read: Body
    family: str = ""
    timed: bool = False


def crossings(num_tokens: Callable[[Body], int], chunk_tokens: int) -> list[Crossing]:
    """Return what is to be served from L2.

    Args:
        num_tokens: Counts a chat's prompt tokens, as the engine does.
        chunk_tokens: Tokens a chunk.
    """
    return [
        *_plain("long", range(_NUM_TIMED), timed=True),
        *_plain("document", range(100, 100 + _NUM_PLAIN), timed=False),
        *_families(),
        *_salted(),
        *_exact(num_tokens, chunk_tokens),
        *_moved(),
    ]


def strangers() -> list[Crossing]:
    """Return prompts that the pool must not serve: too short for a chunk, or of another salt."""
    short = _chat(f"Short. {prose(700, 40)}")
    salted = [_chat(f"Mine. {prose(710 + n, 300)}") for n in range(2)]
    return [
        Crossing("short", "short-0", short, short),
        Crossing(
            "other salt",
            "other-salt-0",
            {**salted[0], "cache_salt": "one"},
            {**salted[0], "cache_salt": "two"},
        ),
        Crossing("other salt", "other-salt-1", {**salted[1], "cache_salt": "one"}, salted[1]),
    ]


def _plain(kind: str, numbers: range, *, timed: bool) -> Iterator[Crossing]:
    for number in numbers:
        words = _LONG_WORDS if timed else _WORDS[number % len(_WORDS)]
        body = _chat(f"Document {number}. {prose(2_000 + number, words)}")
        yield Crossing(kind, f"{kind}-{number}", body, body, timed=timed)


def _families() -> Iterator[Crossing]:
    for family in range(_NUM_FAMILIES):
        shared = f"Family {family}. {prose(3_000 + family, _FAMILY_WORDS)}"
        for member in range(_NUM_MEMBERS):
            seed = 3_100 + family * _NUM_MEMBERS + member
            body = _chat(f"{shared}\nMember {member}. {prose(seed, _MEMBER_WORDS)}")
            name = f"family-{family}-{member}"
            yield Crossing("family", name, body, body, family=f"family-{family}")


def _salted() -> Iterator[Crossing]:
    """Yield the same texts under two salts, which share nothing."""
    for number in range(_NUM_SALTED):
        body = _chat(f"Salted. {prose(4_000 + number // 2, 320)}")
        salted = {**body, "cache_salt": f"tenant-{number % 2}"}
        yield Crossing("salted", f"salted-{number}", salted, salted)


def _exact(num_tokens: Callable[[Body], int], chunk_tokens: int) -> Iterator[Crossing]:
    """Yield prompts that fill their last chunk, of which an engine computes the last token."""
    for number in range(_NUM_EXACT):
        text = f"Exact {number}. {prose(5_000 + number, 260 + 90 * number)}"
        body = next(
            body
            for more in count()
            if num_tokens(body := _chat(text + " the" * more)) % chunk_tokens == 0
        )
        yield Crossing("exact", f"exact-{number}", body, body)


def _moved() -> Iterator[Crossing]:
    """Yield chats whose second turn comes to the other replica."""
    for number in range(_NUM_MOVED):
        opening = [user(f"Chat {number}. {prose(6_000 + number, 400)}")]
        later = [assistant(prose(6_100 + number, 20)), user(prose(6_200 + number, _TURN_WORDS))]
        yield Crossing("moved", f"moved-{number}", _body(opening), _body([*opening, *later]))


def _chat(text: str) -> dict[str, Any]:
    return _body([user(text)])


def _body(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": messages,
        "temperature": 0,
        "max_tokens": _ANSWER_TOKENS,
    }
