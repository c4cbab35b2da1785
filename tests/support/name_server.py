"""A small real DNS server, UDP and TCP on one port, whose zone and moods a test changes."""

import asyncio
import contextlib

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

# RFC 1035, section 4.2.1: what a datagram holds without EDNS.
MAX_DATAGRAM_BYTES = 512
# Another process may hold the UDP port of the number that the system chose for TCP.
MAX_PORT_TRIES = 20


class NameServer:
    """Answers from its zone, unless told to fail.

    Attributes:
        questions: What was asked, in order, as "udp A engines.test.".
        rcodes: What to answer by record type in place of the zone's records, such as SERVFAIL.
        silent: Answer nothing.
        garbage: Answer bytes that are no message.
        num_open: TCP connections that are open.
    """

    def __init__(self):
        self.questions = []
        self.rcodes = {}
        self.silent = False
        self.garbage = False
        self.num_open = 0
        self._zone = {}
        self._stack = contextlib.AsyncExitStack()
        self.address = ""

    async def __aenter__(self):
        for _ in range(MAX_PORT_TRIES):
            tcp = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            port = tcp.sockets[0].getsockname()[1]
            loop = asyncio.get_running_loop()
            try:
                udp, _ = await loop.create_datagram_endpoint(
                    lambda: _Datagrams(self), local_addr=("127.0.0.1", port)
                )
            except OSError:
                tcp.close()
                continue
            self._stack.callback(tcp.close)
            self._stack.callback(udp.close)
            self.address = f"127.0.0.1:{port}"
            return self
        raise OSError("no port is free for both UDP and TCP")

    async def __aexit__(self, *_):
        await self._stack.aclose()

    def put(self, name, record_type, *records, ttl=0):
        """Set the records of a name and type; none makes the name exist without such records."""
        name = dns.name.from_text(name)
        rrset = dns.rrset.from_text_list(name, ttl, "IN", record_type, records)
        self._zone.setdefault(name, {})[record_type] = rrset

    def drop(self, name):
        """Let a name not exist."""
        self._zone.pop(dns.name.from_text(name), None)

    def fail(self, rcode, *record_types):
        """Answer with an rcode; for some types, or for all."""
        self.rcodes = dict.fromkeys(record_types or ("A", "AAAA", "SRV"), rcode)

    def heal(self):
        self.rcodes, self.silent, self.garbage = {}, False, False

    def answer(self, wire, transport):
        """Return the answer to a question, in wire format; None for silence."""
        query = dns.message.from_wire(wire)
        [question] = query.question
        record_type = dns.rdatatype.to_text(question.rdtype)
        self.questions.append(f"{transport} {record_type} {question.name}")
        if self.silent:
            return None
        if self.garbage:
            return b"\x00" * 5
        response = dns.message.make_response(query)
        by_type = self._zone.get(question.name)
        if record_type in self.rcodes:
            response.set_rcode(dns.rcode.from_text(self.rcodes[record_type]))
        elif by_type is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
        else:
            alias = by_type.get("CNAME")
            if alias:
                response.answer.append(alias)
                by_type = self._zone.get(alias[0].target, {})
            if by_type.get(record_type):
                response.answer.append(by_type[record_type])
        if transport == "udp":
            return response.to_wire(max_size=MAX_DATAGRAM_BYTES, prefer_truncation=True)
        return response.to_wire()

    async def _serve(self, reader, writer):
        self.num_open += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    length = int.from_bytes(await reader.readexactly(2), "big")
                    answer = self.answer(await reader.readexactly(length), "tcp")
                    if answer is not None:
                        writer.write(len(answer).to_bytes(2, "big") + answer)
                        await writer.drain()
        finally:
            self.num_open -= 1
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server):
        self._server = server

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, addr):
        answer = self._server.answer(data, "udp")
        if answer is not None:
            self._transport.sendto(answer, addr)
