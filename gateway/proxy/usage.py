"""Reads the engine's own word on cached tokens out of a response that passes by. Pure.

The bytes are not parsed and not held up: only the last pieces are kept, and looked at once, when
the response has ended.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from routing.value import value

# vLLM puts usage into the last event before [DONE], and behind the choices of a whole answer.
_KEPT_PIECES = 4
# Pieces can be as small as a byte, so at least this much is kept: ten times a usage event.
_KEPT_BYTES = 4096
_MARK = b'"usage":{'
# What a metric, a float, holds exactly.
_MAX_COUNT = 2**53
_APART = ("cache_read_input_tokens", "cache_creation_input_tokens")
_DECODER = json.JSONDecoder()


@value
class Usage:
    """Token counts as the engine reported them; `cached_tokens` is None where it does not."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


class UsageReader:
    """Remembers the tail of a body and finds the usage in it."""

    def __init__(self) -> None:
        self._tail: deque[bytes] = deque()
        self._num_bytes = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        tail = self._tail
        tail.append(piece)
        self._num_bytes += len(piece)
        while len(tail) > _KEPT_PIECES and self._num_bytes - len(tail[0]) >= _KEPT_BYTES:
            self._num_bytes -= len(tail.popleft())

    def usage(self) -> Usage | None:
        """Return the last usage object, or None where the body told none.

        Inside a JSON string every quote is escaped, so generated text cannot imitate the mark.
        """
        tail = b"".join(self._tail)
        start = tail.rfind(_MARK)
        if start < 0:
            return None
        try:
            text = tail[start + len(_MARK) - 1 :].decode(errors="replace")
            found, _ = _DECODER.raw_decode(text)
            return _usage(found)
        except (ValueError, AttributeError, RecursionError):
            return None  # cut by the tail, or not an engine that we know


def _usage(found: dict[str, Any]) -> Usage:
    # The Responses API has names of its own, and so has the Messages API, which moreover counts
    # what was read from the cache, and what was written to it, apart from `input_tokens`.
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details") or {}
    apart = [found.get(name) for name in _APART]
    cached = details.get("cached_tokens") if apart[0] is None else apart[0]
    prompt = found.get("prompt_tokens") or found.get("input_tokens") or 0
    completion = found.get("completion_tokens") or found.get("output_tokens") or 0
    return Usage(
        prompt_tokens=_count(prompt) + sum(_count(number or 0) for number in apart),
        completion_tokens=_count(completion),
        cached_tokens=None if cached is None else _count(cached),
    )


def _count(number: Any) -> int:
    if not isinstance(number, int) or not 0 <= number <= _MAX_COUNT:
        raise ValueError("no count of tokens")
    return number
