"""A long body goes out piece by piece: others have their turn, and nothing of it is lost."""

import asyncio

import pytest

from gateway.errors import StreamBroken
from gateway.proxy.connection import PIECE_BYTES, Connection, Exchange
from gateway.proxy.transport import Deadlines, HttpToolsTransport, Origin, UpstreamRequest
from tests.support.peers import peer_server

HEAD = b"POST / HTTP/1.1\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
PATIENT = Deadlines(connect_s=5.0, first_byte_s=5.0, idle_s=5.0)


class Wire:
    """A transport that keeps what is written, and is never full by itself."""

    def __init__(self):
        self.written = []
        self.aborted = False

    def is_closing(self):
        return self.aborted

    def write(self, data):
        self.written.append(bytes(data))

    def abort(self):
        self.aborted = True


def sending():
    """Return a connection that was just given a body of three pieces and a byte."""
    kept = []
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    exchange = Exchange(asyncio.get_running_loop(), 5.0, 5.0, lambda: kept.append(connection))
    body = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"!"
    connection.start(exchange, HEAD, body, bodiless=False)
    return connection, wire, exchange, body, kept


async def test_one_piece_goes_out_in_a_turn_of_the_event_loop():
    _, wire, _, body, _ = sending()
    assert wire.written == [HEAD + body[:PIECE_BYTES]]
    for num_pieces in (2, 3, 4, 4):
        await asyncio.sleep(0)
        assert len(wire.written) == num_pieces
    assert b"".join(wire.written) == HEAD + body


async def test_a_replica_that_reads_slowly_is_waited_for():
    connection, wire, _, body, _ = sending()
    connection.pause_writing()
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(wire.written) == 1
    connection.resume_writing()
    for _ in range(3):
        await asyncio.sleep(0)
    assert b"".join(wire.written) == HEAD + body


async def test_nothing_follows_the_end_of_a_connection():
    connection, wire, exchange, _, _ = sending()
    exchange.close()
    await asyncio.sleep(0)
    connection.resume_writing()
    assert len(wire.written) == 1


async def test_a_connection_that_broke_in_the_middle_says_so():
    connection, wire, exchange, _, _ = sending()
    connection.connection_lost(ConnectionResetError())
    await asyncio.sleep(0)
    assert len(wire.written) == 1
    with pytest.raises(StreamBroken):
        await exchange.headers_received()


async def test_an_answer_to_half_a_body_ends_the_connection():
    """What is left of the body would be read as the next request."""
    connection, wire, exchange, _, kept = sending()
    connection.data_received(OK)
    assert await exchange.read() == b"{}"
    assert wire.aborted
    assert kept == []


async def test_an_answer_to_a_whole_body_keeps_the_connection():
    connection, wire, exchange, _, kept = sending()
    for _ in range(3):
        await asyncio.sleep(0)
    connection.data_received(OK)
    assert await exchange.read() == b"{}"
    assert not wire.aborted
    assert kept == [connection]


@pytest.mark.parametrize("more", [-1, 0, 1, 40 * PIECE_BYTES + 7])
async def test_a_body_of_any_length_arrives_as_it_is(more):
    body = bytes(range(251)) * ((PIECE_BYTES + more) // 251 + 1)
    body = body[: PIECE_BYTES + more]
    seen = []

    async def script(peer):
        for _ in range(2):
            seen.append((await peer.request()).body)
            await peer.send(OK)
        await peer.left()

    async with peer_server(script) as server:
        transport = HttpToolsTransport(asyncio.get_running_loop().time)
        for _ in range(2):
            request = UpstreamRequest(b"POST", b"/", [], body)
            response = await transport.request(Origin("127.0.0.1", server.port), request, PATIENT)
            assert await response.read() == b"{}"
            response.close()
        assert server.connections == 1
        transport.close()
    assert seen == [body, body]
