"""Reads JSON as Python's json does, long bodies in pieces, so that other threads get their turn.

Python's json holds the interpreter's lock until it is through: 10 ms for a body of 2 MB, in which
no stream moves on, whatever thread it runs in. Here msgspec only finds where the parts of a long
body begin and end, and json itself reads each of them.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

# What json reads in under 1 ms, also where every character is escaped (5 ns a byte).
PIECE_BYTES = 128 * 1024
# A body's messages, their parts and the parts' texts are at depths 1 to 4. Each depth is another
# pass over the bytes; what is nested deeper is read in one piece.
MAX_DEPTH = 6
# Of a text that is longer, so much at a time: 50 us, and 150 us where every character is escaped.
TEXT_BYTES = 32 * 1024
# How far a place is looked for where a text may be cut: further than any but a long row of escaped
# backslashes reaches.
_LOOK_BYTES = 1024
# Between two characters, and not between two halves of a surrogate pair: where no escape began in
# the last six bytes, or where one ends that is of two bytes, or of six and no high surrogate.
_CUT = re.compile(
    rb"(?:(?<=[^\\]{6})|(?<=[^\\]\\[^u\\])|(?<=[^\\]\\u(?![Dd][89ABab]).{4}))(?![\x80-\xbf])",
    re.DOTALL,
)

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def read_json(body: bytes) -> Any:
    """Return what `json.loads(body)` returns.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    if len(body) <= PIECE_BYTES:
        return json.loads(body)
    try:
        return _read(memoryview(body.strip()), MAX_DEPTH)
    except msgspec.DecodeError:
        # Not JSON, or something that json takes and msgspec does not: NaN, UTF-16, surrogates.
        return json.loads(body)


def _read(raw: memoryview, depth: int) -> Any:
    """Return what a part of the body says; it is looked at in place, as every copy takes time."""
    if len(raw) <= PIECE_BYTES or depth == 0:
        return json.loads(bytes(raw))
    first = bytes(raw[:1])
    if first == b"{":
        parts = _OBJECT.decode(raw)
        return {key: _read(memoryview(part), depth - 1) for key, part in parts.items()}
    if first == b"[":
        return [_read(memoryview(part), depth - 1) for part in _LIST.decode(raw)]
    if first == b'"':
        return _text(raw)
    return json.loads(bytes(raw))


def _text(raw: memoryview) -> str:
    """Return a JSON string's text, read in pieces."""
    pieces: list[str] = []
    start, end = 1, len(raw) - 1
    while start < end:
        stop = end
        if end - start > TEXT_BYTES:
            least = start + TEXT_BYTES
            cut = _CUT.search(raw, least, min(end, least + _LOOK_BYTES))
            stop = end if cut is None else cut.start()
        text = str(raw[start:stop], "utf-8", "surrogatepass")
        pieces.append(json.loads(f'"{text}"'))
        start = stop
    return "".join(pieces)
