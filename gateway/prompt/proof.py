"""Which short cuts may be taken with a tokenizer: those that give the reference's ids on a corpus.

Runs once for each tokenizer, in the thread that loads it. Whatever differs, fails or takes too long
is left out, with its reason; the reference remains.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random

from transformers import PreTrainedTokenizerBase

from gateway.prompt.bytecache import ByteCache
from gateway.prompt.encoder import (
    AddedTokens,
    Affixes,
    Encoder,
    ReferenceTokenizer,
    TextTokenizer,
    added_tokens,
)
from gateway.prompt.fast import FastTokenizer
from routing.hashing import TOKEN_BYTES
from routing.value import value

# CPU time for each short cut, so that a gateway starts in time. The corpus takes the reference 0.2
# s, and a clock on the wall would make it a matter of luck on a busy machine.
MAX_PROOF_S = 1.0
NUM_MADE_TEXTS = 240
MADE_TEXT_CHARS = 160
NUM_CHATS = 60
_SEED = 5

# Where tokenizers differ: letters of many scripts, marks that compose, digits, symbols, emoji with
# joiners, control characters, odd spaces, private and unassigned places. (first, last) code points.
_RANGES = (
    (0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x00, 0x20), (0x30, 0x39), (0x80, 0xFF),
    (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF),
    (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F),
    (0x2150, 0x218F), (0x2460, 0x24FF), (0x2600, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF),
    (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1FAFF), (0xE0020, 0xE007F),
)  # fmt: skip

_WRITTEN = (
    "", " ", "\n", "\t", "a", " a", "a ", "  a  ", "\n\n a\r\n\tb \u00a0c\u3000d\u200b",
    "The quick brown fox doesn't jump; it'll've WALKED 3.14159 miles in 1,234,567 days.",
    "def f(x):\n    if x['key'] != \"v\":\n\t\treturn {**x, 'n': -1e-9}  # why?\n\n\n    pass\n",
    '{"id":"call_1","arguments":{"a":[1,2.50,null,true],"b":"\\u00e9\\n"}}',
    '<html>\n<a href="https://example.org/?q=1&p=%20">x</a></html><|not_a_token|><|', "|><s></s>",
    "Straße, naïve café, ﬁﬂ, Å Å e\u0301 \u1e9b\u0323, ΑΒΓ αβγ ς, Привет мир, שלום, مرحبا ١٢٣",
    "नमस्ते दुनिया, สวัสดีชาวโลก, 你好\uff0c世界\uff01こんにちは世界。안녕하세요 \u1112\u1161\u11ab",
    "\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea x\u200d",
    "\x00\x01\x1b[0m\x7f\x85\u2028\u2029\ufeff\ufffd\U0010ffff",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "=" * 90,
    " " * 70 + "x" + "\n" * 30, "0123456789" * 9, "½²³ⅷ㊿ ₂ ٣", "ab" * 300, "I'M I'm 'S 's 'Ll",
)  # fmt: skip


def corpus() -> Iterator[str]:
    """Yield the texts that a short cut is tried on: always the same ones."""
    yield from _WRITTEN
    rng = Random(_SEED)
    for _ in range(NUM_MADE_TEXTS):
        chosen = rng.sample(_RANGES, 3)
        picked = (rng.choice(chosen) for _ in range(rng.randint(1, MADE_TEXT_CHARS)))
        yield "".join(chr(rng.randint(first, last)) for first, last in picked)


@value
class Proven:
    """An encoder, and why it does not take the short cuts that it does not take.

    Attributes:
        not_faster: Why the faster tokenizer is not used; None where it is.
        not_kept: Why segments are not kept; None where they are.
    """

    encoder: Encoder
    not_faster: str | None
    not_kept: str | None


def proven_encoder(tokenizer: PreTrainedTokenizerBase, cache: ByteCache) -> Proven:
    """Return the fastest encoder that gives the reference's ids on the corpus."""
    texts = list(corpus())
    affixes = _affixes(tokenizer)
    faster, not_faster = _faster(tokenizer, texts)
    added = added_tokens(tokenizer)
    if isinstance(added, str):
        return Proven(Encoder(tokenizer, faster=faster), not_faster, added)
    encoder = Encoder(tokenizer, faster=faster, added=added, affixes=affixes, cache=cache)
    not_kept = _difference_of_segments(encoder, tokenizer, texts, added)
    if not_kept is not None:
        encoder = Encoder(tokenizer, faster=faster)
    return Proven(encoder, not_faster, not_kept)


def _faster(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> tuple[TextTokenizer | None, str | None]:
    try:
        faster = FastTokenizer(tokenizer)
    except Exception as error:  # noqa: BLE001 - whatever keeps it from loading, there is the reference
        return None, f"cannot be loaded: {type(error).__name__}"
    reference = ReferenceTokenizer(tokenizer)
    until = time.thread_time() + MAX_PROOF_S
    for text in texts:
        whole = reference.packed_whole(text, add_special_tokens=False)
        if faster.packed((text,)) != [whole]:
            return None, f"other ids for {text[:20]!r}"
        if time.thread_time() > until:
            return None, "took too long to try"
    return faster, None


def _affixes(tokenizer: PreTrainedTokenizerBase) -> Affixes | None:
    """Return what is added around every text; None where that depends on it."""
    reference = ReferenceTokenizer(tokenizer)
    found: set[tuple[bytes, bytes]] = set()
    for text in ("a", "Hello there,\nworld ", "\u4f60\u597d"):
        bare = reference.packed_whole(text, add_special_tokens=False)
        whole = reference.packed_whole(text, add_special_tokens=True)
        starts = range(0, len(whole) - len(bare) + 1, TOKEN_BYTES)
        start = next((i for i in starts if whole[i : i + len(bare)] == bare), None)
        if start is None:
            return None
        if bare:
            found.add((whole[:start], whole[start + len(bare) :]))
    return Affixes(*found.pop()) if len(found) == 1 else None


def _difference_of_segments(
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    added: AddedTokens,
) -> str | None:
    """Return where kept segments give other ids than the whole text; None for nowhere."""
    reference = ReferenceTokenizer(tokenizer)
    tokens = [content.decode() for content in added.squeezed_by_content]
    until = time.thread_time() + MAX_PROOF_S
    for chat in _chats(texts, tokens):
        for add_special_tokens in (False, True):
            whole = reference.packed_whole(chat, add_special_tokens=add_special_tokens)
            # Twice: computed, then from the cache.
            for _ in range(2):
                if encoder.encode(chat, add_special_tokens=add_special_tokens) != whole:
                    return f"other ids for a text of segments that ends {chat[-20:]!r}"
        if time.thread_time() > until:
            return "took too long to try"
    return None


def _chats(texts: Sequence[str], tokens: Sequence[str]) -> Iterator[str]:
    rng = Random(_SEED)
    yield from tokens[:NUM_CHATS]
    for _ in range(NUM_CHATS):
        pieces: list[str] = []
        for _ in range(rng.randint(1, 12)):
            pieces += rng.choices((rng.choice(texts), "", " ", "\n", "user\n"), (8, 1, 1, 2, 2))
            pieces += rng.choices((rng.choice(tokens), ""), (4, 1))
        yield "".join(pieces)
