"""Which headers cross the gateway, in both directions. Pure.

Source: RFC 9110, section 7.6.1 (hop-by-hop fields, and those that Connection names).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Written anew for the next hop: the body is whole here, and `100 Continue` was ours to answer.
FRAMING = frozenset({b"host", b"content-length", b"expect"})
# Where a client's API key for the gateway may be.
CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
_REWRITTEN = HOP_BY_HOP | FRAMING | FORWARDED | {b"x-request-id"}


def first(headers: Iterable[Header], name: bytes) -> bytes | None:
    """Return the first value of a header (`name` in lower case), or None."""
    for key, value in headers:  # a plain loop: half the time of a generator, ten times a request
        if key == name:
            return value
    return None


def request_headers(
    received: Sequence[Header],
    *,
    client: str,
    scheme: str,
    request_id: bytes,
    traceparent: bytes,
    bearer: bytes | None,
    without: frozenset[bytes],
) -> list[Header]:
    """Return the headers that go to a replica.

    Args:
        received: The client's headers, names in lower case.
        client: The client's address, appended to X-Forwarded-For.
        scheme: http or https, as the client came in.
        request_id: Goes out as X-Request-Id; the client's own where it sent one.
        traceparent: Goes out where the client sent none.
        bearer: The replica's own key; replaces the client's Authorization where there is one.
        without: Further headers that stay here: the client's key, undone content encodings.
    """
    kept: list[Header] = []
    dropped: list[Header] = []
    stays = without | _named_by_connection(received)
    for header in received:  # one walk: a request has a dozen headers, and every look costs
        (dropped if header[0] in _REWRITTEN or header[0] in stays else kept).append(header)
    chain = [value for name, value in dropped if name == b"x-forwarded-for"]
    kept += [
        (b"x-forwarded-for", b", ".join([*chain, client.encode()])),
        (b"x-forwarded-proto", first(dropped, b"x-forwarded-proto") or scheme.encode()),
        (b"x-request-id", request_id),
    ]
    if first(kept, b"traceparent") is None:
        kept.append((b"traceparent", traceparent))
    if bearer is not None:
        kept = [header for header in kept if header[0] != b"authorization"]
        kept.append((b"authorization", b"Bearer " + bearer))
    return kept


def response_headers(received: Sequence[Header]) -> list[Header]:
    """Return the headers of a replica's response that go to the client; Content-Length stays."""
    dropped = HOP_BY_HOP
    if further := _named_by_connection(received):
        dropped |= further
    headers = [header for header in received if header[0] not in dropped]
    if is_event_stream(received):
        headers = [header for header in headers if header[0] != b"x-accel-buffering"]
        headers.append((b"x-accel-buffering", b"no"))  # nginx collects events otherwise
    return headers


def is_event_stream(headers: Iterable[Header]) -> bool:
    """Return whether a response is a stream of server-sent events."""
    return (first(headers, b"content-type") or b"").lower().startswith(b"text/event-stream")


def _named_by_connection(headers: Iterable[Header]) -> frozenset[bytes]:
    """Return what Connection names beyond the hop-by-hop fields; for most messages nothing."""
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection" and value != b"keep-alive":
            named |= {token.strip().lower() for token in value.split(b",")}
    return named
