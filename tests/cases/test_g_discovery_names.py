"""Area G: names that move to other addresses, or lose them for a while."""

import asyncio
import contextlib
import socket
import threading

from gateway.config.load import config_from_flags
from tests.support.discoveries import NAME, DnsSource, built, dns_section, following
from tests.support.name_server import NameServer
from tests.support.replicas import ScriptedReplica, until

HOST = "vllm-0.vllm.ns.svc"
CHAT = "/v1/chat/completions"


async def test_g134_discovery_follows_a_name_within_its_ttl(tmp_path):
    """The A record moves, is gone for a while, comes back as two, and then there is IPv6 only."""
    async with NameServer() as server:
        source = DnsSource(tmp_path)
        source.section = dns_section(server, port=8000, stale_s=600.0)

        def at(*hosts):
            return source.expected(f"http://{host}:8000" for host in hosts)

        server.put(NAME, "A", "10.0.0.1")
        async with following(built(source)) as follower:
            await follower.sees(at("10.0.0.1"))
            server.put(NAME, "A", "10.0.0.2")
            await follower.sees(at("10.0.0.2"))
            server.drop(NAME)
            await follower.says("no such name")
            assert follower.latest == at("10.0.0.2")
            server.put(NAME, "A", "10.0.0.3", "10.0.0.4")
            await follower.sees(at("10.0.0.3", "10.0.0.4"))
            server.put(NAME, "A")
            server.put(NAME, "AAAA", "2001:db8::1")
            await follower.sees(at("[2001:db8::1]"))
            assert follower.problem is None


class Resolver:
    """Stands in for the system's resolver, for one name.

    Attributes:
        addresses: What the name has now; none is a name that does not exist.
        threads: The threads that looked it up.
    """

    def __init__(self, monkeypatch):
        self.addresses = ["127.0.0.1"]
        self.threads = set()
        self._system = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host, port, *args, **kwargs):
        if host not in (HOST, HOST.encode()):
            return self._system(host, port, *args, **kwargs)
        self.threads.add(threading.current_thread())
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            found
            for address in self.addresses
            for found in self._system(address, port, type=socket.SOCK_STREAM)
        ]


@contextlib.asynccontextmanager
async def replica_at(address, name, port=0):
    async def script(conversation):
        await conversation.answer(b'{"from": "%b"}' % name.encode())

    replica = ScriptedReplica(script)
    replica.server = await asyncio.start_server(replica._serve, address, port)
    replica.port = replica.server.sockets[0].getsockname()[1]
    try:
        yield replica
    finally:
        await replica.stop()


async def test_g134_a_replica_given_by_name_is_looked_up_for_every_new_connection(
    gateways, chat, monkeypatch, require
):
    """Kept connections to the old address end with it; the next ones go to the new address.

    Without an address the replica is ejected and requests get 503. The Host header is the name,
    and no look-up runs in the loop's thread.
    """
    resolver = Resolver(monkeypatch)
    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(replica_at("127.0.0.1", "old"))
        config = config_from_flags([f"http://{HOST}:{old.port}"])
        ejection = {"base_s": 0.05, "max_s": 0.1}
        gateway = await gateways(config, ejection=ejection)

        async def ask():
            return await gateway.client.post(CHAT, json=chat())

        async def serves(name):
            async def answered():
                answer = await ask()
                return answer.status_code == 200 and answer.json() == {"from": name}

            await until(answered, f"an answer from {name}")

        answers = await asyncio.gather(*(ask() for _ in range(10)))
        assert [answer.json() for answer in answers] == [{"from": "old"}] * 10

        new = await stack.enter_async_context(replica_at("127.0.0.2", "new", old.port))
        resolver.addresses = ["127.0.0.2"]
        await old.stop()
        await serves("new")
        assert {request.header(b"host") for request in (*new.received, *new.probes)} == {
            f"{HOST}:{old.port}".encode()
        }

        resolver.addresses = []
        await new.stop()

        async def refused():
            return (await ask()).status_code == 503

        await until(refused, "503")
        assert await gateway.states() == ["ejected"]

        resolver.addresses = ["127.0.0.3", "127.0.0.2"]  # nobody listens at the first
        both = await stack.enter_async_context(replica_at("127.0.0.2", "both", old.port))
        await serves("both")
        await both.stop()

        resolver.addresses = ["::1"]
        require("IPv6 on the loopback", has_ipv6(), "enable IPv6")
        await stack.enter_async_context(replica_at("::1", "six", old.port))
        await serves("six")
        assert threading.main_thread() not in resolver.threads


def has_ipv6():
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False
