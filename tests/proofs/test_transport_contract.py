"""What every `Transport` does, whatever it is made of: the seam that a faster one has to fit.

A new implementation gets one row in TRANSPORTS; one that is missing there fails a test.
"""

import asyncio
import inspect
import socket
import ssl

import pytest

from gateway.errors import ReplicaTimeout, ReplicaUnreachable, StreamBroken
from gateway.proxy import transport as seam
from gateway.proxy.transport import Deadlines, HttpToolsTransport, Origin, UpstreamRequest
from tests.support.peers import peer_server
from tests.support.replicas import until

TRANSPORTS = {"httptools": HttpToolsTransport}
"""Factories by name; each takes a clock (monotonic seconds)."""

PATIENT = Deadlines(connect_s=5.0, first_byte_s=5.0, idle_s=5.0)
BODY = b'{"model":"m"}'
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def post(body=BODY, *, method=b"POST", headers=()):
    return UpstreamRequest(method, b"/v1/x?a=%20b", list(headers), body)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=sorted(TRANSPORTS))
async def transport(request, clock):
    made = TRANSPORTS[request.param](clock)
    yield made
    made.close()


def origin(server):
    return Origin("127.0.0.1", server.port)


async def whole(response):
    """Return a response's body; the response is closed."""
    pieces = []
    while piece := await response.read():
        pieces.append(piece)
    assert await response.read() == b"", "the end stays the end"
    response.close()
    return b"".join(pieces)


async def read_into(pieces, response):
    """Read a body piece by piece; what came is there even if it does not end well."""
    try:
        while piece := await response.read():
            pieces.append(piece)
    finally:
        response.close()


async def ask(transport, server, request=None, deadlines=PATIENT):
    response = await transport.request(origin(server), request or post(), deadlines)
    return response.status, await whole(response)


def says(*answers):
    """Answer the requests of a connection with these bytes, in order."""

    async def script(peer):
        for answer in answers:
            await peer.request()
            await peer.send(answer)
        await peer.left()

    return script


def test_every_transport_is_in_this_suite():
    kinds = {
        kind
        for kind in vars(seam).values()
        if inspect.isclass(kind)
        and not getattr(kind, "_is_protocol", False)
        and {"request", "close"} <= vars(kind).keys()
    }
    assert kinds == set(TRANSPORTS.values())


# The request on the wire.


async def test_the_request_is_written_as_it_was_given(transport):
    seen = []

    async def script(peer):
        seen.append(await peer.request())
        await peer.send(OK)

    headers = [(b"b", b"1"), (b"a", b"\xe9 x"), (b"b", b"2"), (b"empty", b"")]
    async with peer_server(script) as server:
        await ask(transport, server, post(b"\x00\xff{}", headers=headers))
    [request] = seen
    assert request.line == b"POST /v1/x?a=%20b HTTP/1.1"
    assert request.body == b"\x00\xff{}"
    assert request.header(b"host") == b"127.0.0.1:%d" % server.port
    assert [header for header in request.headers if header in headers] == headers
    assert request.header(b"content-length") == b"4"
    assert request.header(b"transfer-encoding") is None


@pytest.mark.parametrize(("method", "length"), [(b"GET", None), (b"POST", b"0")])
async def test_an_empty_body_is_told_where_one_is_expected(transport, method, length):
    seen = []

    async def script(peer):
        seen.append(await peer.request())
        await peer.send(OK)

    async with peer_server(script) as server:
        await ask(transport, server, post(b"", method=method))
    assert seen[0].header(b"content-length") == length


# Answers.

FRAMINGS = {
    "length": b"content-length: 5\r\n\r\nhello",
    "no_bytes": b"content-length: 0\r\n\r\n",
    "chunked": b"transfer-encoding: chunked\r\n\r\n1\r\nh\r\n4;x=y\r\nello\r\n0\r\n\r\n",
    "trailers": b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-late: 1\r\n\r\n",
    "close": b"connection: close\r\n\r\nhello",
    "close_empty": b"\r\n",
}


@pytest.mark.parametrize("split", ["whole", "bytes"])
@pytest.mark.parametrize("framing", FRAMINGS)
async def test_a_body_is_whole_in_every_framing_and_split(transport, framing, split):
    async def script(peer):
        await peer.request()
        answer = b"HTTP/1.1 200 OK\r\n" + FRAMINGS[framing]
        await peer.send(*([answer] if split == "whole" else [bytes([b]) for b in answer]))
        if framing.startswith("close"):
            peer.close()
        await peer.left()

    async with peer_server(script) as server:
        empty = framing in ("no_bytes", "close_empty")
        assert await ask(transport, server) == (200, b"" if empty else b"hello")


async def test_headers_keep_their_order_and_their_bytes(transport):
    head = (
        b"HTTP/1.1 201 Created\r\nB: 1\r\nSet-Cookie: x\r\na: \xe9 2\r\nSet-Cookie: y\r\n"
        b"Empty:\r\ncontent-length: 0\r\n\r\n"
    )
    async with peer_server(says(head)) as server:
        response = await transport.request(origin(server), post(), PATIENT)
        assert response.status == 201
        assert response.headers == [
            (b"b", b"1"),
            (b"set-cookie", b"x"),
            (b"a", b"\xe9 2"),
            (b"set-cookie", b"y"),
            (b"empty", b""),
            (b"content-length", b"0"),
        ]
        await whole(response)


async def test_trailers_are_not_headers(transport):
    # RFC 9110, 6.5.1: a trailer must not be merged into the header section.
    answer = (
        b"HTTP/1.1 200 OK\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nx-late: 1\r\nx-later: 2\r\n\r\n"
    )
    async with peer_server(says(answer)) as server:
        response = await transport.request(origin(server), post(), PATIENT)
        assert await whole(response) == b"{}"
        assert [name for name, _ in response.headers] == [b"x-a", b"transfer-encoding"]


@pytest.mark.parametrize(
    "before",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n",
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nx-p: 1\r\n\r\n"
            b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
        ),
    ],
    ids=["100", "103", "three"],
)
@pytest.mark.parametrize("split", ["whole", "apart", "bytes"])
async def test_interim_answers_are_passed_over(transport, before, split):
    async def script(peer):
        for _ in range(2):
            await peer.request()
            pieces = {"whole": [before + OK], "apart": [before, OK]}
            await peer.send(*pieces.get(split, [bytes([b]) for b in before + OK]))
        await peer.left()

    async with peer_server(script) as server:
        for _ in range(2):  # and the connection still serves
            response = await transport.request(origin(server), post(), PATIENT)
            assert (response.status, response.headers) == (200, [(b"content-length", b"2")])
            assert await whole(response) == b"{}"
        assert server.connections == 1


@pytest.mark.parametrize(
    ("method", "head"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 OK\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n"),
    ],
)
async def test_answers_without_a_body_end_with_their_headers(transport, method, head):
    async def script(peer):
        while True:
            request = await peer.request()
            await peer.send(OK if request.line.startswith(b"POST") else head)

    async with peer_server(script) as server:
        async with asyncio.timeout(2.0):
            response = await transport.request(origin(server), post(b"", method=method), PATIENT)
            assert await whole(response) == b""
        assert await ask(transport, server) == (200, b"{}"), "what follows is read from its start"


async def test_an_answer_to_half_a_request_is_taken(transport):
    """The replica refuses before it has read the body, and never reads it."""
    refusal = b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbig"

    async def script(peer):
        await peer.request_head()
        await peer.send(refusal)
        peer.finish()
        await peer.left()

    async with peer_server(script) as server:
        async with asyncio.timeout(2.0):
            assert await ask(transport, server, post(b"x" * 2**24)) == (413, b"big")
        await until(lambda: server.ended == 1, "the end of the connection")


async def test_an_early_answer_on_a_kept_connection_confuses_no_later_one(transport):
    """The replica answers first and reads the rest later; the next answer is the next one's."""

    async def script(peer):
        while True:
            head = await peer.request_head()
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + head.header(b"x-n"))
            await peer.reader.readexactly(int(head.header(b"content-length")))

    async with peer_server(script) as server:
        for number in (b"1", b"2", b"3"):
            request = post(b"x" * 2**22, headers=[(b"x-n", number)])
            assert await ask(transport, server, request) == (200, number)


# Keeping connections.


async def test_a_whole_answer_leaves_its_connection_for_the_next(transport):
    async with peer_server(says(OK, OK, OK)) as server:
        for _ in range(3):
            assert await ask(transport, server) == (200, b"{}")
        assert server.connections == 1


async def test_requests_at_once_have_a_connection_each(transport):
    gate = asyncio.Event()

    async def script(peer):
        while True:
            await peer.request()
            await gate.wait()
            await peer.send(OK)

    async with peer_server(script) as server:
        both = [asyncio.create_task(ask(transport, server)) for _ in range(2)]
        await until(lambda: server.connections == 2)
        gate.set()
        assert await asyncio.gather(*both) == [(200, b"{}")] * 2
        assert await ask(transport, server) == (200, b"{}")
        assert server.connections == 2


UNFIT = {
    "says_close": b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
    "http_1_0": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    "more_than_asked": OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison",
    "junk_behind": OK + b"junk",
}


@pytest.mark.parametrize("answer", UNFIT.values(), ids=UNFIT)
async def test_a_connection_that_cannot_be_trusted_is_not_used_again(transport, answer):
    async def script(peer):
        await peer.request()
        await peer.send(answer if peer.number == 1 else OK)
        await peer.left()

    async with peer_server(script) as server:
        first = await transport.request(origin(server), post(), PATIENT)
        try:
            assert await whole(first) == b"{}"
        except StreamBroken:
            first.close()  # that is an answer to junk, too
        assert await ask(transport, server) == (200, b"{}")
        assert server.connections == 2


async def test_unasked_bytes_on_an_idle_connection_are_not_the_next_answer(transport):
    sent = asyncio.Event()

    async def script(peer):
        await peer.request()
        await peer.send(OK)
        if peer.number == 1:
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison")
            sent.set()
        await peer.left()

    async with peer_server(script) as server:
        assert await ask(transport, server) == (200, b"{}")
        await sent.wait()
        await until(lambda: server.ended == 1, "the poisoned connection's end")
        assert await ask(transport, server) == (200, b"{}")
        assert server.connections == 2


async def test_a_connection_kept_for_too_long_is_not_used(transport, clock):
    async with peer_server(says(OK, OK)) as server:
        await ask(transport, server)
        clock.now += seam.IDLE_EXPIRY_S
        await ask(transport, server)
        assert server.connections == 2
        await until(lambda: server.ended == 1, "the old connection's end")


async def test_a_kept_connection_that_closes_under_a_request_gets_one_fresh_try(transport):
    async def script(peer):
        await peer.request()
        if peer.number == 1:
            await peer.send(OK)
            await peer.request()
            peer.close()
            return
        await peer.send(OK)
        await peer.left()

    async with peer_server(script) as server:
        assert await ask(transport, server) == (200, b"{}")
        assert await ask(transport, server) == (200, b"{}")
        assert server.connections == 2


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_the_fresh_try_is_the_last_one(transport, how):
    received = 0

    async def script(peer):
        nonlocal received
        await peer.request()
        received += 1
        if peer.number == 1 and received == 1:
            await peer.send(OK)
            await peer.request()
            received += 1
        getattr(peer, how)()

    async with peer_server(script) as server:
        await ask(transport, server)
        with pytest.raises(StreamBroken):
            await ask(transport, server)
        assert (received, server.connections) == (3, 2)


async def test_a_fresh_connection_that_closes_is_not_tried_again(transport):
    async def script(peer):
        await peer.request()
        peer.close()

    async with peer_server(script) as server:
        with pytest.raises(StreamBroken):
            await ask(transport, server)
        assert server.connections == 1


@pytest.mark.parametrize("some", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", OK[:-1]])
async def test_after_one_byte_of_answer_nothing_is_tried_again(transport, some):
    async def script(peer):
        await peer.request()
        if peer.number == 1:
            await peer.send(OK)
            await peer.request()
        await peer.send(some)
        peer.close()

    async with peer_server(script) as server:
        await ask(transport, server)
        with pytest.raises(StreamBroken):
            await ask(transport, server)
        assert server.connections == 1


# Letting go.


@pytest.mark.parametrize("read", [0, 1], ids=["unread", "half_read"])
async def test_closing_an_unfinished_answer_ends_its_connection(transport, read):
    async def script(peer):
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nx")
        await peer.left()

    async with peer_server(script) as server:
        response = await transport.request(origin(server), post(), PATIENT)
        for _ in range(read):
            assert await response.read() == b"x"
        response.close()
        response.close()
        async with asyncio.timeout(1.0):
            await until(lambda: server.ended == 1)


async def test_closing_a_whole_answer_that_was_not_read_keeps_or_ends_cleanly(transport):
    async with peer_server(says(OK, OK, OK, OK)) as server:
        for _ in range(3):
            response = await transport.request(origin(server), post(), PATIENT)
            response.close()
        assert await ask(transport, server) == (200, b"{}")


@pytest.mark.parametrize("when", ["before_headers", "in_body"])
async def test_a_cancelled_wait_ends_its_connection(transport, when):
    waiting = asyncio.Event()

    async def script(peer):
        await peer.request()
        if when == "in_body":
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
        waiting.set()
        await peer.left()

    async def exchange():
        response = await transport.request(origin(server), post(), PATIENT)
        try:
            await whole(response)
        finally:
            response.close()

    async with peer_server(script) as server:
        task = asyncio.create_task(exchange())
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(1.0):
            await until(lambda: server.ended == 1)


async def test_closing_the_transport_ends_idle_connections(transport):
    async with peer_server(says(OK, OK)) as server:
        await ask(transport, server)
        assert server.ended == 0
        transport.close()
        await until(lambda: server.ended == 1)


# Bounds.


async def test_a_reader_that_waits_stops_the_replica(transport):
    sent = 0
    piece = b"x" * 65536

    async def script(peer):
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1024 * len(piece)))
        for _ in range(1024):
            await peer.send(piece)
            sent += len(piece)
        await peer.left()

    async with peer_server(script) as server:
        response = await transport.request(origin(server), post(), PATIENT)
        seen = -1
        while sent != seen:  # until the replica is stuck in its send
            seen = sent
            await asyncio.sleep(0.05)
        # The kernel's buffers of both ends (4 MiB and 6 MiB by Linux's default), and ours.
        assert sent < 12 * 2**20
        assert len(await whole(response)) == 1024 * len(piece)
        transport.close()
        await until(lambda: server.ended == 1, "the end: it is not left paused")


ENDLESS = {
    "one_value": (b"HTTP/1.1 200 OK\r\nx-endless: ", b"v" * 65536),
    "one_name": (b"HTTP/1.1 200 OK\r\n", b"n" * 65536),
    "many_headers": (b"HTTP/1.1 200 OK\r\n", b"x-many: value\r\n" * 4096),
    "reason": (b"HTTP/1.1 200 ", b"r" * 65536),
    "many_interim": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 1024),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_headers_without_end_are_cut_off(transport, kind):
    """Header bytes are bounded, complete or not: about 64 KiB, and never a megabyte."""
    sent = 0
    start, more = ENDLESS[kind]

    async def script(peer):
        nonlocal sent
        await peer.request()
        await peer.send(start)
        for _ in range(1024):  # 64 MiB
            await peer.send(more)
            sent += len(more)

    async with peer_server(script) as server:
        with pytest.raises(StreamBroken):
            await transport.request(origin(server), post(), PATIENT)
        await until(lambda: server.ended == 1, "the end of the connection")
        assert sent < 16 * 2**20  # what the kernel's buffers took


@pytest.mark.parametrize("size", [60 * 1024, 70 * 1024])
async def test_64_kib_of_headers_are_the_limit(transport, size):
    big = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-big: %b\r\n\r\n" % (b"v" * size)
    async with peer_server(says(big)) as server:
        if size < 64 * 1024:
            assert await ask(transport, server) == (200, b"")
        else:
            with pytest.raises(StreamBroken):
                await ask(transport, server)


ENDLESS_FRAMING = {
    "many_trailers": (b"0\r\n", b"x-trailer: value\r\n" * 4096),
    "one_trailer": (b"0\r\nx-trailer: ", b"v" * 65536),
    "one_extension": (b"1;x=", b"e" * 65536),
}


@pytest.mark.parametrize("kind", ENDLESS_FRAMING)
async def test_framing_without_end_is_cut_off(transport, kind):
    """What comes in a body and is none of it is bounded as headers are."""
    start, more = ENDLESS_FRAMING[kind]

    async def script(peer):
        await peer.request()
        await peer.send(CHUNKED + b"1\r\nx\r\n" + start)
        while True:
            await peer.send(more)

    async with peer_server(script) as server:
        response = await transport.request(origin(server), post(), PATIENT)
        got = []
        with pytest.raises(StreamBroken):
            await read_into(got, response)
        assert got == [b"x"]
        await until(lambda: server.ended == 1)


async def test_framing_between_pieces_does_not_add_up(transport):
    """A stream may have any number of small chunks, with whatever extensions each has."""
    event = b"1;%b\r\nx\r\n" % (b"e" * 1000)
    async with peer_server(says(CHUNKED + event * 1000 + b"0\r\n\r\n")) as server:
        assert await ask(transport, server) == (200, b"x" * 1000)


# What goes wrong, and by which name.


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhell",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_broken_answer_is_never_a_whole_one(transport, answer, how):
    async def script(peer):
        await peer.request()
        await peer.send(answer)
        getattr(peer, how)()

    async with peer_server(script) as server:
        with pytest.raises(StreamBroken):
            await ask(transport, server)
        assert server.connections == 1


async def test_a_body_until_close_is_broken_by_a_reset(transport):
    ready = asyncio.Event()

    async def script(peer):
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await ready.wait()
        peer.reset()

    async with peer_server(script) as server:
        response = await transport.request(origin(server), post(), PATIENT)
        assert await response.read() == b"hello"
        ready.set()
        with pytest.raises(StreamBroken):
            await response.read()
        response.close()


async def test_what_came_before_a_break_is_still_given(transport):
    async def script(peer):
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b"abc", b"def")
        peer.close()

    async with peer_server(script) as server:
        response = await transport.request(origin(server), post(), PATIENT)
        await until(lambda: server.ended == 1)
        got = []
        with pytest.raises(StreamBroken):
            await read_into(got, response)
        assert b"".join(got) == b"abcdef"


async def test_nobody_listening_is_unreachable(transport):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        nobody = Origin("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ReplicaUnreachable):
            await transport.request(nobody, post(), PATIENT)


async def test_a_name_that_does_not_exist_is_unreachable(transport):
    with pytest.raises(ReplicaUnreachable):
        await transport.request(Origin("no-such-host.invalid", 80), post(), PATIENT)


async def test_a_peer_that_speaks_no_tls_is_unreachable(transport):
    async def script(peer):
        await peer.send(b"this is no TLS\r\n")
        peer.close()

    async with peer_server(script) as server:
        speaks_tls = Origin("127.0.0.1", server.port, ssl.create_default_context())
        with pytest.raises(ReplicaUnreachable):
            await transport.request(speaks_tls, post(), PATIENT)


@pytest.mark.parametrize(
    ("start", "deadlines", "got"),
    [
        (b"", Deadlines(5.0, 0.05, 5.0), None),
        (b"HTTP/1.1 200 OK\r\n", Deadlines(5.0, 0.05, 5.0), None),
        (b"HTTP/1.1 100 Continue\r\n\r\n", Deadlines(5.0, 0.05, 5.0), None),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Deadlines(5.0, 0.05, 5.0), b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nx", Deadlines(5.0, 5.0, 0.05), b"x"),
    ],
    ids=["nothing", "half_headers", "interim", "no_body", "idle_body"],
)
async def test_silence_is_a_timeout_and_ends_the_connection(transport, start, deadlines, got):
    async def script(peer):
        await peer.request()
        await peer.send(start)
        await peer.left()

    async with peer_server(script) as server:
        read = []

        async def exchange():
            response = await transport.request(origin(server), post(), deadlines)
            await read_into(read, response)

        async with asyncio.timeout(2.0):
            with pytest.raises(ReplicaTimeout):
                await exchange()
        assert b"".join(read) == (got or b"")
        await until(lambda: server.ended == 1)


async def test_a_drip_of_interim_answers_does_not_outlast_the_deadline(transport):
    async def script(peer):
        await peer.request()
        while True:
            await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            await asyncio.sleep(0.01)

    async with peer_server(script) as server:
        async with asyncio.timeout(2.0):
            with pytest.raises(ReplicaTimeout):
                await transport.request(origin(server), post(), Deadlines(5.0, 0.1, 5.0))
        await until(lambda: server.ended == 1)
