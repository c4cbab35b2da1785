"""Undoes a request body's content encoding, bounded. Pure.

vLLM reads no compressed bodies, so what is decoded for routing is also what goes to the replica.
"""

from __future__ import annotations

import zlib

from gateway.errors import InvalidRequest, PromptTooLarge, UnsupportedEncoding

# zlib's window sizes: 16 + MAX_WBITS reads gzip's header, MAX_WBITS zlib's (RFC 9110's "deflate").
# RFC 9110, 8.4.1.3: x-gzip is the old name of gzip.
_WINDOW_BY_ENCODING = (
    ("gzip", 16 + zlib.MAX_WBITS),
    ("x-gzip", 16 + zlib.MAX_WBITS),
    ("deflate", zlib.MAX_WBITS),
)
# Fed at once, as zlib keeps a copy of what it was fed and did not come to. In steps of 64 KiB a
# text of 2 MB takes a tenth longer.
_STEP_BYTES = 1024 * 1024


def decode_body(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return a body without its content encoding.

    Args:
        body: As received.
        encoding: The Content-Encoding header's value; empty for none.
        max_bytes: Of the result. No more than that is ever unpacked.

    Raises:
        UnsupportedEncoding: Neither gzip nor deflate nor identity.
        InvalidRequest: The body is not what the header says.
        PromptTooLarge: It unpacks to more than `max_bytes`.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    window = next((bits for known, bits in _WINDOW_BY_ENCODING if known == name), None)
    if window is None:
        raise UnsupportedEncoding("Content-Encoding must be gzip, deflate or identity.")
    unpacker = zlib.decompressobj(window)
    packed = memoryview(body)
    pieces: list[bytes] = []
    room = max_bytes + 1
    try:
        for start in range(0, len(body), _STEP_BYTES):
            piece = unpacker.decompress(packed[start : start + _STEP_BYTES], room)
            pieces.append(piece)
            room -= len(piece)
            if room == 0:  # to zlib it would mean no bound
                raise PromptTooLarge(f"The body unpacks to more than {max_bytes} bytes.")
            if unpacker.eof:
                return b"".join(pieces)
    except zlib.error:
        raise InvalidRequest(f"The body is not valid {name}.") from None
    raise InvalidRequest(f"The body is cut short: its {name} does not end.")
