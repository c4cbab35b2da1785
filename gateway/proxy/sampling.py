"""Asks engines how much they had cached where the client did not, and takes the answer out again.

A streaming answer tells its usage only where `stream_options` ask for it. For a share of the
streams we ask ourselves. The engine then sends one more event, which is removed; all other bytes
pass as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from gateway.prompt.body import BodyKind, RequestBody, splice_field
from gateway.proxy.headers import Header, first, is_event_stream
from gateway.proxy.transport import UpstreamResponse

# Only in the event that is asked for: in strings, quotes are escaped.
_MARKS = (b'"choices":[]', b'"usage":{')
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
# No usage event is longer; what is passes on, so that no answer is held up or piles up.
_MAX_HELD_BYTES = 64 * 1024


def asks_usage(body: RequestBody, share: float, rng: Random) -> bool:
    """Return whether to ask for a stream's usage: for a share of those whose client does not.

    Args:
        body: The client's.
        share: 0 to 1.
        rng: Draws.
    """
    return (
        share > 0
        and body.stream
        and body.kind in (BodyKind.CHAT, BodyKind.COMPLETION)
        and "stream_options" not in body.fields
        and rng.random() < share
    )


def with_usage(body: bytes) -> bytes:
    """Return a streaming request's bytes, asking for usage."""
    return splice_field(body, "stream_options", b'{"include_usage":true}')


def takes_report(body: RequestBody) -> bool:
    """Return whether a request can ask its engine to report what it finds in its cache."""
    is_known = body.kind in (BodyKind.CHAT, BodyKind.COMPLETION)
    return is_known and "vllm_xargs" not in body.fields


def with_report(body: bytes) -> bytes:
    """Return a request's bytes, asking for KV events of what it finds too (vLLM 0.26 on)."""
    return splice_field(body, "vllm_xargs", b'{"kv_cache_report_mode":"full"}')


class UsageFilter:
    """Takes the usage event out of a stream of server-sent events.

    Args:
        removed: Is given its bytes.
    """

    def __init__(self, removed: Callable[[bytes], None]) -> None:
        self._removed = removed
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take the next piece of the body; return what may pass on by now."""
        held = self._held + piece
        passing = []
        while (end := _event_end(held)) > 0:
            event, held = held[:end], held[end:]
            if all(mark in event for mark in _MARKS):
                self._removed(event)
            else:
                passing.append(event)
        if len(held) > _MAX_HELD_BYTES:
            passing.append(held)
            held = b""
        self._held = held
        return b"".join(passing)

    def end(self) -> bytes:
        """Return what was held back of an event that never ended."""
        held, self._held = self._held, b""
        return held


class WithoutUsage:
    """An `UpstreamResponse` whose usage event is taken out.

    Args:
        upstream: A stream of events, not compressed.
        removed: Is given the event's bytes.
    """

    def __init__(self, upstream: UpstreamResponse, removed: Callable[[bytes], None]) -> None:
        self._upstream = upstream
        self._filter = UsageFilter(removed)

    @property
    def status(self) -> int:
        """HTTP status."""
        return self._upstream.status

    @property
    def headers(self) -> list[Header]:
        """Headers as received."""
        return self._upstream.headers

    @property
    def ended(self) -> bool:
        """Whether all of the body was read."""
        return self._upstream.ended

    async def read(self) -> bytes:
        """Return the next piece that passes; b"" at the end."""
        while True:
            piece = self._filter.feed(await self._upstream.read())
            if self._upstream.ended:
                return piece + self._filter.end()
            if piece:
                return piece

    def close(self) -> None:
        """Let go."""
        self._upstream.close()


def without_usage(upstream: UpstreamResponse, removed: Callable[[bytes], None]) -> UpstreamResponse:
    """Return a response without its usage event, where it is one that can have it."""
    is_plain = first(upstream.headers, b"content-encoding") is None
    if upstream.status != 200 or not is_plain or not is_event_stream(upstream.headers):
        return upstream
    return WithoutUsage(upstream, removed)


def _event_end(held: bytes) -> int:
    """Return where the first event ends; 0 where it does not yet."""
    ends = [at + len(end) for end in _EVENT_ENDS if (at := held.find(end)) >= 0]
    return min(ends, default=0)
