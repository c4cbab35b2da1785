"""What the simulated model says: words that stay the same tokens when a prompt repeats them."""

import random
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from loadtests.simulator.prompts import PromptEncoder

# Long enough to fill a block or two of 16, short enough for a demo.
_NATURAL_TOKENS = (16, 128)
# Enough that replies differ; checking a word takes some microseconds at start.
_MAX_WORDS = 4_096
_MIN_WORDS = 64
# Byte-level BPE writes a leading space as this letter.
_INNER = re.compile("\u0120[a-z]{2,}")
_FIRST = re.compile("[A-Z][a-z]+")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request says about its reply."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply: ids, the text that each of them adds, and why it ends."""

    token_ids: list[int]
    pieces: list[str]
    finish_reason: str
    stop_reason: str | int | None = None


class ReplyWriter:
    """Writes the reply that belongs to a prompt; equal prompts get equal replies.

    Raises:
        ValueError: The tokenizer is not a byte-level BPE with enough whole words in it.
    """

    def __init__(self, encoder: PromptEncoder) -> None:
        self._eos = encoder.eos_token_id
        vocabulary = sorted(encoder.vocabulary().items(), key=lambda item: item[1])
        inner = [(i, " " + token[1:]) for token, i in vocabulary if _INNER.fullmatch(token)]
        first = [(i, token) for token, i in vocabulary if _FIRST.fullmatch(token)]
        self._inner = _stable(encoder, inner[:_MAX_WORDS])
        # A reply without a leading space survives templates that strip content.
        self._first = _stable(encoder, first[:_MAX_WORDS])
        if len(self._inner) < _MIN_WORDS or not self._first:
            raise ValueError(
                f"the tokenizer has {len(self._inner)} whole words, at least {_MIN_WORDS} are "
                "needed: only byte-level BPE tokenizers are supported"
            )

    def write(self, prompt_ids: Sequence[int], wish: Wish) -> Reply:
        """Return the reply to a prompt, at least one and at most `wish.max_tokens` tokens."""
        seed = xxh3_64_intdigest(array("I", prompt_ids).tobytes())
        rng = random.Random(seed)
        natural = max(rng.randint(*_NATURAL_TOKENS), wish.min_tokens)
        ends = self._eos is not None and not wish.ignore_eos and natural <= wish.max_tokens
        count = natural - 1 if ends else wish.max_tokens
        words = rng.choices(self._first, k=min(count, 1)) + rng.choices(self._inner, k=count - 1)
        ids, pieces = [i for i, _ in words], [text for _, text in words]
        if ends and self._eos is not None:
            # The end of a message: a token that was generated and has no text.
            ids.append(self._eos)
            pieces.append("")
        reply = Reply(ids, pieces, "stop" if ends else "length")
        return _stop_at_string(_stop_at_token(reply, wish), wish)


def _stable(encoder: PromptEncoder, words: list[tuple[int, str]]) -> list[tuple[int, str]]:
    encoded = encoder.encode_batch([text for _, text in words])
    return [word for word, ids in zip(words, encoded, strict=True) if ids == [word[0]]]


def _stop_at_token(reply: Reply, wish: Wish) -> Reply:
    stops = set(wish.stop_token_ids)
    for at, token_id in enumerate(reply.token_ids):
        if token_id in stops and at >= wish.min_tokens:
            pieces = [*reply.pieces[:at], reply.pieces[at] if wish.include_stop else ""]
            return Reply(reply.token_ids[: at + 1], pieces, "stop", token_id)
    return reply


def _stop_at_string(reply: Reply, wish: Wish) -> Reply:
    if not any(wish.stop):
        return reply
    text = ""
    for at, piece in enumerate(reply.pieces):
        text += piece
        hits = [(text.find(stop), stop) for stop in wish.stop if stop and stop in text]
        if hits and at >= wish.min_tokens:
            start, stop = min(hits)
            pieces = _cut(reply.pieces[: at + 1], start + (len(stop) if wish.include_stop else 0))
            return Reply(reply.token_ids[: at + 1], pieces, "stop", stop)
    return reply


def _cut(pieces: list[str], length: int) -> list[str]:
    cut = []
    for piece in pieces:
        cut.append(piece[:length])
        length -= len(cut[-1])
    return cut
