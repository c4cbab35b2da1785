"""However TCP cuts the bytes, the same bytes go on: client to replica, and replica to client."""

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.stage import Stage

# More pieces than this prove nothing new and cost a turn of the loop each.
MAX_PIECES = 300
EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SAME_SESSION = (b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",)


@pytest.fixture(scope="module")
def stage():
    """Return one that waits for the slowest trickle: a byte after the other takes a while."""
    with Stage(ejection={"failures": 1_000_000}) as started:
        yield started


sizes = st.one_of(
    st.just([1]),
    st.lists(st.integers(1, 7), min_size=1, max_size=6),
    st.lists(st.integers(1, 2000), min_size=1, max_size=6),
)
"""Piece sizes, used round and round."""


def split(data, sizes):
    """Return `data` in pieces of these sizes, the rest in one."""
    pieces, at = [], 0
    for size in itertools.islice(itertools.cycle(sizes), MAX_PIECES):
        if at >= len(data):
            break
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]] if at < len(data) else pieces


async def trickle(send, pieces):
    for piece in pieces:
        await send(piece)
        # One turn to put it on the wire, one for the other side to take it off.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def chunked(body, sizes, extension=b"", trailers=b""):
    """Return a body in chunks of these sizes, as bytes on the wire."""
    chunks = [b"%x%b\r\n%b\r\n" % (len(c), extension, c) for c in split(body, sizes)]
    return b"".join(chunks) + b"0" + extension + b"\r\n" + trailers + b"\r\n"


# Client to gateway.

token = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=12)
# Visible ASCII, spaces and tabs inside, and obs-text: what a field value may hold (RFC 9110).
value = st.binary(max_size=20).map(
    lambda raw: bytes(b for b in raw if b == 9 or 32 <= b < 127 or b > 127).strip(b" \t")
)
headers = st.lists(st.tuples(token.map(lambda name: f"x-t-{name}".encode()), value), max_size=6)
texts = st.one_of(st.text(max_size=60), st.text(min_size=1, max_size=4).map(lambda t: t * 2000))


@st.composite
def requests(draw):
    """A POST: (bytes of its head without framing, its body, its bytes behind the head)."""
    path = draw(
        st.sampled_from([b"/v1/chat/completions", b"/v1/completions?x=%20&y", b"/tokenize"])
    )
    text = draw(texts).encode("utf-8", "replace").replace(b"\\", b"").replace(b'"', b"")
    text = bytes(b for b in text if b >= 32)
    space = draw(st.sampled_from([b"", b" ", b"\n\t"]))
    body = (
        b'{%b"model":%b"m","model" :"m","messages":[{"role":"user"}],"prompt":"%b","n":1.0e0}'
        % (
            space,
            space,
            text,
        )
    )
    lines = [b"POST %b HTTP/1.1" % path, b"Host: gw", *SAME_SESSION]
    lines += [b"%b:%b%b" % (name, space[:1].strip(b"\n"), value) for name, value in draw(headers)]
    if draw(st.booleans()):
        extension = draw(st.sampled_from([b"", b";a=b", b';a="x y";c']))
        trailers = draw(st.sampled_from([b"", b"x-late: 1\r\n"]))
        framed = chunked(body, draw(sizes), extension, trailers)
        lines.append(b"Transfer-Encoding: chunked")
    else:
        framed = body
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines), body, framed


@pytest.mark.timeout(300)
def test_any_split_of_requests_is_forwarded_alike(stage):
    @EXAMPLES
    @given(st.lists(requests(), min_size=1, max_size=3), sizes)
    def forwards_alike(asked, sizes):
        stage.play(_forwards_alike, asked, sizes)

    forwards_alike()


async def _forwards_alike(stage, asked, sizes):
    async def script(conversation):
        seen.append(conversation.request)
        await conversation.answer(conversation.request.header(b"x-request-id"))

    plan = stage.new_plan(script)
    wire = b""
    for number, (head, _, framed) in enumerate(asked):
        names = b"\r\nx-plan: %b\r\nx-request-id: r-%d" % (plan.encode(), number)
        wire += head + names + b"\r\n\r\n" + framed
    forwarded = []
    for pieces in ([wire], split(wire, sizes)):
        seen = []
        client = await stage.connect()
        answers = asyncio.create_task(_answers(client, len(asked)))
        await trickle(client.send, pieces)
        assert await answers == [(200, b"r-%d" % number) for number in range(len(asked))]
        client.leave()
        # The replica's address may differ from one run to the other; all else may not.
        forwarded.append([(_without_host(request), request.body) for request in seen])
    assert forwarded[0] == forwarded[1]
    assert [request.body for request in seen] == [body for _, body, _ in asked]
    for request, (head, _, _) in zip(seen, asked, strict=True):
        assert request.line == head.partition(b"\r\n")[0]
        kept = [pair for pair in request.headers if pair[0].startswith(b"x-t-")]
        lines = (line.split(b":", 1) for line in head.split(b"\r\n")[1:])
        assert kept == [(k, v.strip()) for k, v in lines if k.startswith(b"x-t-")]


def _without_host(request):
    return [line for line in request.head.split(b"\r\n") if not line.startswith(b"host:")]


async def _answers(client, count):
    answers = [await client.answer() for _ in range(count)]
    return [(answer.status, answer.body) for answer in answers]


# Replica to client.

INTERIM = (
    b"",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n",
)
bodies = st.one_of(
    st.binary(max_size=60),
    st.lists(st.text(max_size=20), max_size=6).map(
        lambda lines: "".join(f"data: {line!r}\n\n" for line in lines).encode()
    ),
    st.binary(min_size=1, max_size=8).map(lambda piece: piece * 20_000),
)


@st.composite
def answers(draw):
    """A replica's answer: (its bytes, its status, its headers, its body, how it ends)."""
    body = draw(bodies)
    status = draw(st.sampled_from([200, 201, 400, 404, 500]))
    kind = draw(st.sampled_from([b"application/json", b"text/event-stream; charset=utf-8"]))
    fields = [(b"content-type", kind), *draw(headers)]
    lines = [b"HTTP/1.1 %d Whatever it is" % status]
    lines += [b"%b: %b" % field for field in fields]
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    framed = body
    if framing == "length":
        lines.append(b"Content-Length: %d" % len(body))
    elif framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
        extension = draw(st.sampled_from([b"", b";a=b"]))
        framed = chunked(body, draw(sizes), extension, draw(st.sampled_from([b"", b"x-l: 1\r\n"])))
    wire = draw(st.sampled_from(INTERIM)) + b"\r\n".join(lines) + b"\r\n\r\n" + framed
    return wire, status, fields, body, framing


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_any_split_of_an_answer_reaches_the_client_alike(stage, version):
    @EXAMPLES
    @given(answers(), sizes)
    def answers_alike(answer, sizes):
        stage.play(_answers_alike, version, answer, sizes)

    answers_alike()


async def _answers_alike(stage, version, answer, sizes):
    wire, status, fields, body, framing = answer
    for pieces in ([wire], split(wire, sizes)):

        async def script(conversation, pieces=pieces):
            await trickle(conversation.send, pieces)
            if framing == "close":
                conversation.writer.close()

        client = await stage.connect()
        request = b'{"model":"m","prompt":"x"}'
        await client.send(
            b"POST /v1/completions HTTP/%b\r\nhost: gw\r\nconnection: close\r\nx-plan: %b\r\n"
            b"content-length: %d\r\n\r\n%b"
            % (version.encode(), stage.new_plan(script).encode(), len(request), request)
        )
        got = await client.answer()
        assert await client.rest() == b"", "nothing behind the answer"
        client.leave()
        assert (got.status, got.body, got.whole) == (status, body, True)
        names = {name for name, _ in fields}
        assert [pair for pair in got.headers if pair[0] in names] == fields
        assert not got.all(b"x-l"), "a trailer is no header"
        if version == "1.0":
            assert got.framing != "chunked"
