"""From text to packed token ids, as the reference tokenizer gives them, at a fraction of its cost.

Tokenizers look for their added tokens (`<|im_end|>` and the like) before anything else, and
tokenize each text between two of them by itself. So the ids of such a text, a segment, depend on
nothing around it, and are kept by the segment's content. What a tokenizer would have to be for this
not to hold is looked at when it is loaded, and tried on a corpus: gateway/prompt/proof.py.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from gateway.prompt.bytecache import ByteCache
from routing.hashing import TOKEN_BYTES, pack_tokens
from routing.value import value

# Kept ids take three bytes: no vocabulary has 16 million tokens. 64 MiB hold 2,000 chats of 8,000.
KEPT_BYTES = 3
# 128 bits of SHA-256: with ids forwarded to the engine, a collision would run another prompt.
NAME_BYTES = 16
# What takes 0.5 ms to encode or decode where every character is written in three bytes, or to
# search for added tokens.
SLICE_CHARS = 128 * 1024
# From here on bytes are moved by numpy, which lets go of the interpreter's lock meanwhile; for
# fewer its preparations take longer than the work.
_MANY_TOKENS = 16 * 1024
# Time to tokenize a byte of UTF-8 that was never seen before: Qwen3's tokenizer, one core, text of
# 4 bytes a token. Only tells what may run on the event loop.
REFERENCE_BYTE_S = 0.7e-6
FAST_BYTE_S = 0.05e-6


class TextTokenizer(Protocol):
    """Tokenizes texts without adding tokens of its own."""

    def packed(self, texts: Sequence[str]) -> list[bytes]:
        """Return each text's token ids, packed."""
        ...


class ReferenceTokenizer:
    """The tokenizers library as transformers has set it up.

    Args:
        tokenizer: transformers' fast tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def packed(self, texts: Sequence[str]) -> list[bytes]:
        """Return each text's token ids, packed.

        Raises:
            UnicodeEncodeError: A text has half a surrogate pair.
        """
        # Not transformers' own `encode`: it goes the same way and then makes lists of all else that
        # is known of a token. A batch of one, as only batches release the interpreter's lock.
        try:
            batch = self._tokenizer.backend_tokenizer.encode_batch_fast(
                texts, add_special_tokens=False
            )
        except TypeError:  # what it says of half a surrogate pair
            for text in texts:
                text.encode()
            raise
        return [pack_tokens(encoding.ids) for encoding in batch]

    def packed_whole(self, text: str, *, add_special_tokens: bool) -> bytes:
        """Return one text's token ids, with those that the tokenizer adds.

        Raises:
            UnicodeEncodeError: There is half a surrogate pair in it.
        """
        text.encode()
        return pack_tokens(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))


@value
class Affixes:
    """Packed token ids that a tokenizer puts around every text when asked to."""

    before: bytes
    after: bytes


@value
class AddedTokens:
    """Where texts can be cut into segments.

    Attributes:
        pattern: Finds added tokens in UTF-8, the longest where several begin.
        squeezed_by_content: Their ids, squeezed.
        max_bytes: Length of the longest.
    """

    pattern: re.Pattern[bytes]
    squeezed_by_content: Mapping[bytes, bytes]
    max_bytes: int

    def split(self, whole: bytes) -> list[bytes]:
        """Return texts and added tokens by turns, without keeping the interpreter's lock long."""
        if len(whole) <= SLICE_CHARS:
            return self.pattern.split(whole)
        contents: list[bytes] = []
        done = start = 0
        while start < len(whole):
            stop = start + SLICE_CHARS
            # What begins before `stop` is seen to its end.
            for found in self.pattern.finditer(whole, start, stop + self.max_bytes - 1):
                if found.start() >= stop:
                    break
                contents += (whole[done : found.start()], found[0])
                done = found.end()
            start = max(stop, done)
        return [*contents, whole[done:]]


@value
class Pieces:
    """A text that is cut into segments.

    Attributes:
        text: The whole.
        add_special_tokens: Whether the tokenizer adds its own.
        contents: UTF-8 of segments and added tokens, in order; the whole text where it is not cut.
        names: What the segments, which are every second content, are kept by; empty where the
            text is not cut.
        kept: Ids of each, squeezed; None where they have to be computed.
        num_new_bytes: Length of what has to be computed.
    """

    text: str
    add_special_tokens: bool
    contents: Sequence[bytes]
    names: Sequence[bytes]
    kept: Sequence[bytes | None]
    num_new_bytes: int


class Encoder:
    """Gives the token ids of texts. Any thread may use it.

    Without further arguments it is the reference itself.

    Args:
        tokenizer: transformers' fast tokenizer.
        faster: Gives the same ids for texts; None for none that does.
        added: Where to cut; None where segments do not tokenize by themselves.
        affixes: What is added around a text on demand; None where it depends on the text.
        cache: Keeps segments.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        faster: TextTokenizer | None = None,
        added: AddedTokens | None = None,
        affixes: Affixes | None = None,
        cache: ByteCache | None = None,
    ) -> None:
        self._reference = ReferenceTokenizer(tokenizer)
        self._texts: TextTokenizer = faster or self._reference
        self._is_faster = faster is not None
        self._added = added
        self._affixes = affixes
        self._cache = ByteCache(0) if cache is None else cache
        self._tag = self._cache.new_tag()

    def encode(self, text: str, *, add_special_tokens: bool = False) -> bytes:
        """Return a text's token ids, packed as `routing.hashing.pack_tokens` does.

        Raises:
            UnicodeEncodeError: There is half a surrogate pair in it.
        """
        return self.join(self.cut(text, add_special_tokens=add_special_tokens))

    def cut(self, text: str, *, add_special_tokens: bool = False) -> Pieces:
        """Cut a text into segments, and look up which are known.

        Raises:
            UnicodeEncodeError: There is half a surrogate pair in it.
        """
        whole = utf8(text)
        added = self._added
        if added is None or (add_special_tokens and self._affixes is None):
            return Pieces(text, add_special_tokens, (whole,), (), (None,), len(whole))
        # Texts and added tokens by turns; a text is empty where two added tokens follow each other.
        contents = added.split(whole)
        kept: list[bytes | None] = [b""] * len(contents)
        kept[1::2] = [added.squeezed_by_content[token] for token in contents[1::2]]
        tag = self._tag
        names = [sha256(text).digest()[:NAME_BYTES] + tag for text in contents[::2]]
        kept[::2] = self._cache.get_all(names)
        new = 0
        if None in kept:
            new = sum(len(part) for part, ids in zip(contents, kept, strict=True) if ids is None)
        return Pieces(text, add_special_tokens, contents, names, kept, new)

    def join(self, pieces: Pieces) -> bytes:
        """Return the packed token ids of a cut text; segments that were new are known then."""
        affixes = self._affixes
        if not pieces.names:
            return self._uncut(pieces)
        packed = self._packed(pieces)
        if not pieces.add_special_tokens or affixes is None:
            return packed
        return affixes.before + packed + affixes.after

    def seconds(self, pieces: Pieces) -> float:
        """Return about how long `join` takes."""
        a_byte = FAST_BYTE_S if self._is_faster else REFERENCE_BYTE_S
        return pieces.num_new_bytes * a_byte

    def _uncut(self, pieces: Pieces) -> bytes:
        if not pieces.add_special_tokens:
            return self._texts.packed((pieces.text,))[0]
        return self._reference.packed_whole(pieces.text, add_special_tokens=True)

    def _packed(self, pieces: Pieces) -> bytes:
        new = [number for number, ids in enumerate(pieces.kept) if ids is None]
        if not new:
            return unsqueeze(pieces.kept)
        texts = [from_utf8(pieces.contents[number]) for number in new]
        computed = self._texts.packed(texts)
        names = (pieces.names[number // 2] for number in new)
        self._cache.put_all(zip(names, map(squeeze, computed), strict=True))
        # What was computed is not unsqueezed again.
        left = iter(computed)
        runs = groupby(pieces.kept, key=lambda ids: ids is None)
        return b"".join(
            b"".join(next(left) for _ in run) if is_new else unsqueeze(run) for is_new, run in runs
        )


def utf8(text: str) -> bytes:
    """Return `text.encode()`, without keeping the interpreter's lock for long.

    Raises:
        UnicodeEncodeError: There is half a surrogate pair in it.
    """
    if len(text) <= SLICE_CHARS:
        return text.encode()
    starts = range(0, len(text), SLICE_CHARS)
    return b"".join([text[start : start + SLICE_CHARS].encode() for start in starts])


def from_utf8(content: bytes) -> str:
    """Return `content.decode()`, without keeping the interpreter's lock for long."""
    if len(content) <= SLICE_CHARS:
        return content.decode()
    decoder = codecs.getincrementaldecoder("utf-8")()
    starts = range(0, len(content), SLICE_CHARS)
    return "".join([decoder.decode(content[start : start + SLICE_CHARS]) for start in starts])


def squeeze(packed: bytes) -> bytes:
    """Return packed little-endian token ids with three bytes for each."""
    num_tokens = len(packed) // TOKEN_BYTES
    if num_tokens >= _MANY_TOKENS:
        return _moved(packed, TOKEN_BYTES, KEPT_BYTES)
    squeezed = bytearray(num_tokens * KEPT_BYTES)
    for byte in range(KEPT_BYTES):
        squeezed[byte::KEPT_BYTES] = packed[byte::TOKEN_BYTES]
    return bytes(squeezed)


def unsqueeze(parts: Iterable[bytes | None]) -> bytes:
    """Return packed token ids of squeezed parts, one after the other."""
    squeezed = b"".join(part for part in parts if part is not None)
    num_tokens = len(squeezed) // KEPT_BYTES
    if num_tokens >= _MANY_TOKENS:
        return _moved(squeezed, KEPT_BYTES, TOKEN_BYTES)
    packed = bytearray(num_tokens * TOKEN_BYTES)
    for byte in range(KEPT_BYTES):
        packed[byte::TOKEN_BYTES] = squeezed[byte::KEPT_BYTES]
    return bytes(packed)


def _moved(content: bytes, before: int, after: int) -> bytes:
    """Return token ids of `before` bytes each with `after` bytes each."""
    source = np.frombuffer(content, np.uint8).reshape(-1, before)
    target = np.zeros((len(source), after), np.uint8)
    for byte in range(KEPT_BYTES):
        target[:, byte] = source[:, byte]
    return target.tobytes()


def added_tokens(tokenizer: PreTrainedTokenizerBase) -> AddedTokens | str:
    """Return where a tokenizer's texts can be cut, or why they cannot.

    Source: tokenizers' AddedVocabulary: tokens that are not normalized are looked for in the raw
    text, leftmost and longest first, and each text between them is normalized by itself.
    """
    if sys.byteorder != "little":
        return "a machine that is not little-endian"
    decoder: Mapping[int, Any] = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    tokens = {i: token for i, token in decoder.items() if not token.normalized}
    if not tokens:
        return "no special tokens"
    if any(token.lstrip or token.rstrip or token.single_word for token in tokens.values()):
        return "special tokens that take the space beside them"
    if len(tokenizer) >= 1 << (8 * KEPT_BYTES):
        return "too large a vocabulary"
    contents = {token.content.encode(): i for i, token in tokens.items() if token.content}
    if not contents:
        return "no special tokens"
    longest_first = sorted(contents, key=len, reverse=True)
    pattern = re.compile(b"(" + b"|".join(map(re.escape, longest_first)) + b")")
    ids = {content: squeeze(pack_tokens([i])) for content, i in contents.items()}
    return AddedTokens(pattern, ids, len(longest_first[0]))
