"""Names and what befalls them, against a real name server with scripted moods."""

import asyncio
import io
import json
import subprocess
import sys
import time
from random import Random

import dns.asyncresolver
import dns.nameserver
import pytest

from gateway.config.discovery import DnsDiscoveryConfig
from gateway.replicas.discovery.base import Found
from gateway.replicas.discovery.dns import DnsDiscovery
from tests.support.discoveries import NAME, SOON_S, dns_section, following
from tests.support.name_server import NameServer
from tests.support.replicas import until

SRV_NAME = f"_http._tcp.{NAME}"
FAILURES = {
    "no such name": lambda server: server.drop(NAME),
    "SERVFAIL from": lambda server: server.fail("SERVFAIL"),
    "REFUSED from": lambda server: server.fail("REFUSED"),
    "no answer within 0.2 s": lambda server: setattr(server, "silent", True),
    "no A or AAAA records": lambda server: server.put(NAME, "A"),
}


def patience(failure):
    """Return the section's deadline: as long as the failure says, or no reason for another one."""
    return {"timeout_s": 0.2 if "0.2 s" in failure else 5.0}


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
async def server():
    async with NameServer() as server:
        yield server


@pytest.fixture
def clock():
    return Clock()


def discovery(server, now=time.monotonic, rng=None, **changes):
    return DnsDiscovery(dns_section(server, **{"port": 8000, **changes}), now, rng or Random(7))


def at(*hosts, scheme="http", port=8000):
    return {Found(f"{scheme}://{host}:{port}") for host in hosts}


async def asked(server, num):
    """Wait until `num` further questions came."""
    before = len(server.questions)
    await until(lambda: len(server.questions) >= before + num, f"{num} questions")


async def test_addresses_of_a_headless_service(server):
    server.put(NAME, "A", "10.0.0.1", "10.0.0.2")
    async with following(discovery(server)) as follower:
        await follower.sees(at("10.0.0.1", "10.0.0.2"))


async def test_only_ipv6(server):
    server.put(NAME, "AAAA", "2001:DB8::1", "2001:db8:0:0::2")
    async with following(discovery(server)) as follower:
        await follower.sees(at("[2001:db8::1]", "[2001:db8::2]"))
        assert follower.problem is None


@pytest.mark.parametrize(
    ("family", "host", "asks"),
    [
        ("auto", "10.0.0.1", {"udp A engines.test."}),
        ("ipv4", "10.0.0.1", {"udp A engines.test."}),
        ("ipv6", "[2001:db8::1]", {"udp AAAA engines.test."}),
    ],
)
async def test_a_pod_with_two_addresses_is_one_replica(server, family, host, asks):
    server.put(NAME, "A", "10.0.0.1")
    server.put(NAME, "AAAA", "2001:db8::1")
    async with following(discovery(server, family=family)) as follower:
        await follower.sees(at(host))
        assert set(server.questions) == asks


async def test_broken_aaaa_records_do_not_matter_where_there_are_a_records(server):
    server.put(NAME, "A", "10.0.0.1")
    server.fail("SERVFAIL", "AAAA")
    async with following(discovery(server)) as follower:
        await follower.sees(at("10.0.0.1"))
        assert follower.problem is None


async def test_a_family_that_cannot_be_asked_is_not_taken_for_empty(server):
    """The AAAA records of a dual-stack Service must not step in for A records in trouble."""
    server.put(NAME, "A", "10.0.0.1")
    server.put(NAME, "AAAA", "2001:db8::1")
    async with following(discovery(server)) as follower:
        await follower.sees(at("10.0.0.1"))
        server.fail("SERVFAIL", "A")
        await follower.says("SERVFAIL")
        assert follower.seen == [at("10.0.0.1")]


async def test_srv_records_carry_names_and_ports(server):
    targets = f"10 50 8000 engine-0.{NAME}.", f"20 0 8001 Engine-1.{NAME}."
    server.put(SRV_NAME, "SRV", *targets)
    section = {"port": None, "service": "http", "scheme": "https"}
    async with following(discovery(server, **section)) as follower:
        first = at(f"engine-0.{NAME}", scheme="https")
        await follower.sees(first | at(f"engine-1.{NAME}", scheme="https", port=8001))


async def test_srv_records_that_name_no_replica_are_left_out(server):
    good = f"0 0 8000 engine-0.{NAME}."
    useless = ("0 0 0 .", f"0 0 0 engine-1.{NAME}.", "0 0 80 a\\032b.test.")
    server.put(SRV_NAME, "SRV", good, *useless)
    async with following(discovery(server, port=None, service="http")) as follower:
        await follower.sees(at(f"engine-0.{NAME}"))
        server.put(SRV_NAME, "SRV", *useless)
        await follower.says("no SRV records")
        assert follower.latest == at(f"engine-0.{NAME}")


async def test_an_alias_is_followed(server):
    server.put("alias.test", "CNAME", f"{NAME}.")
    server.put(NAME, "A", "10.0.0.1")
    async with following(discovery(server, host="alias.test")) as follower:
        await follower.sees(at("10.0.0.1"))


async def test_a_cut_answer_is_asked_for_again_by_tcp(server):
    hosts = [f"10.0.{i // 200}.{i % 200}" for i in range(300)]
    server.put(NAME, "A", *hosts)
    async with following(discovery(server, max_ttl_s=30.0, min_ttl_s=30.0)) as follower:
        await follower.sees(at(*hosts))
        assert server.questions == ["udp A engines.test.", "tcp A engines.test."]


@pytest.mark.parametrize(
    ("ttl", "bounds", "pause_s"),
    [
        (0, {"min_ttl_s": 1.5, "max_ttl_s": 30.0}, 1.5),
        (5, {"min_ttl_s": 1.0, "max_ttl_s": 30.0}, 5.0),
        (3600, {"min_ttl_s": 1.0, "max_ttl_s": 30.0}, 30.0),
    ],
)
async def test_the_ttl_counts_within_its_bounds(server, pauses, ttl, bounds, pause_s):
    server.put(NAME, "A", "10.0.0.1", ttl=ttl)
    async with following(discovery(server, **bounds)):
        await until(lambda: pauses == [pause_s], f"a pause of {pause_s} s")


async def test_the_shortest_ttl_of_a_chain_counts(server, pauses):
    server.put("alias.test", "CNAME", f"{NAME}.", ttl=4)
    server.put(NAME, "A", "10.0.0.1", ttl=20)
    section = {"host": "alias.test", "min_ttl_s": 1.0, "max_ttl_s": 30.0}
    async with following(discovery(server, **section)):
        await until(lambda: pauses == [4.0], "a pause of 4 s")


@pytest.fixture
def pauses(monkeypatch):
    """Collect how long the discovery wants to sleep; it then sleeps for ever."""
    return scripted_pauses(monkeypatch, num_passed=0)


def scripted_pauses(monkeypatch, num_passed):
    """Collect pauses; the first `num_passed` of them take no time, the next one never ends."""
    found = []

    class Asyncio:
        """The module as the discovery sees it."""

        def __getattr__(self, name):
            return getattr(asyncio, name)

        async def sleep(self, pause_s):
            found.append(pause_s)
            await (asyncio.sleep(0) if len(found) <= num_passed else asyncio.Event().wait())

    monkeypatch.setattr("gateway.replicas.discovery.dns.asyncio", Asyncio())
    return found


@pytest.mark.parametrize("failure", FAILURES)
async def test_failures_are_not_hammered(server, monkeypatch, failure):
    """The pause doubles from min_ttl_s up to max_ttl_s, less up to a half by chance."""
    found = scripted_pauses(monkeypatch, num_passed=6)
    FAILURES[failure](server)
    section = {"min_ttl_s": 1.0, "max_ttl_s": 30.0, **patience(failure)}
    async with following(discovery(server, rng=Random(3), **section)) as follower:
        await until(lambda: len(found) == 7, "7 pauses")
        assert failure in follower.problem
    rng = Random(3)
    longest = [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert found == [each * rng.uniform(0.5, 1.0) for each in longest]


async def test_one_good_answer_forgives_all_failures(server, monkeypatch):
    found = scripted_pauses(monkeypatch, num_passed=5)
    server.fail("SERVFAIL")
    section = {"min_ttl_s": 1.0, "max_ttl_s": 30.0}
    discovered = discovery(server, **section)
    ask = discovered._questions.ask

    async def scripted():
        if len(found) == 4:
            server.put(NAME, "A", "10.0.0.1", ttl=7)
            server.heal()
        if len(found) == 5:
            server.fail("SERVFAIL")
        return await ask()

    monkeypatch.setattr(discovered._questions, "ask", scripted)
    async with following(discovered):
        await until(lambda: len(found) == 6, "6 pauses")
    assert found[4] == 7.0
    assert 1.0 <= found[5] <= 2.0


@pytest.mark.parametrize("failure", FAILURES)
async def test_the_last_good_answer_stays_for_stale_s(server, clock, failure):
    server.put(NAME, "A", "10.0.0.1")
    section = {"stale_s": 60.0, **patience(failure)}
    async with following(discovery(server, clock, **section)) as follower:
        await follower.sees(at("10.0.0.1"))
        FAILURES[failure](server)
        await follower.says(failure)
        clock.now += 59.9
        await asked(server, 4)
        assert follower.seen == [at("10.0.0.1")]
        clock.now += 0.2
        await follower.sees(set())
        assert failure in follower.problem
        server.heal()
        server.put(NAME, "A", "10.0.0.1")
        await follower.sees(at("10.0.0.1"))
        assert follower.problem is None
        assert follower.seen == [at("10.0.0.1"), set(), at("10.0.0.1")]


async def test_the_end_of_stale_s_is_not_slept_through(server, clock, monkeypatch):
    server.put(NAME, "A", "10.0.0.1")
    found = scripted_pauses(monkeypatch, num_passed=1)
    section = {"min_ttl_s": 20.0, "max_ttl_s": 20.0, "stale_s": 5.0}
    discovered = discovery(server, clock, **section)
    ask = discovered._questions.ask

    async def scripted():
        if found:
            server.fail("SERVFAIL")
        return await ask()

    monkeypatch.setattr(discovered._questions, "ask", scripted)
    async with following(discovered):
        await until(lambda: len(found) == 2, "a second pause")
    assert found == [20.0, 5.0]


async def test_every_good_answer_renews_the_stale_time(server, clock):
    server.put(NAME, "A", "10.0.0.1")
    async with following(discovery(server, clock, stale_s=60.0)) as follower:
        await follower.sees(at("10.0.0.1"))
        clock.now += 50.0
        await asked(server, 2)
        server.fail("SERVFAIL")
        await follower.says("SERVFAIL")
        clock.now += 50.0
        await asked(server, 4)
        assert follower.seen == [at("10.0.0.1")]


async def test_what_is_no_message_is_waited_out_by_timeout(server):
    server.put(NAME, "A", "10.0.0.1")
    server.garbage = True
    async with following(discovery(server, timeout_s=0.2)) as follower:
        await follower.says("no answer within 0.2 s")
        server.heal()
        await follower.sees(at("10.0.0.1"))


async def test_a_lost_datagram_is_sent_again_within_one_lookup(server):
    server.put(NAME, "A", "10.0.0.1")
    server.silent = True
    async with following(discovery(server)) as follower:
        await asked(server, 1)
        server.heal()
        await follower.sees(at("10.0.0.1"))
        assert follower.problem is None


async def test_a_second_name_server_answers_for_one_in_trouble(server):
    async with NameServer() as other:
        other.put(NAME, "A", "10.0.0.1")
        server.fail("SERVFAIL")
        servers = [server.address, other.address]
        async with following(discovery(server, servers=servers)) as follower:
            await follower.sees(at("10.0.0.1"))
            assert follower.problem is None


async def test_a_name_server_that_is_not_there(server):
    async with NameServer() as other:
        gone = other.address
    async with following(discovery(server, servers=[gone], timeout_s=0.3)) as follower:
        await follower.says(f"{NAME}, port 8000: ")


def system(server, *, search="", ndots=5):
    """Return what makes a resolver of a pod's /etc/resolv.conf, with the test's server."""

    def resolver():
        lines = f"nameserver 127.0.0.1\nsearch {search}\noptions ndots:{ndots}\n"
        found = dns.asyncresolver.Resolver(io.StringIO(lines))
        host, port = server.address.split(":")
        found.nameservers = [dns.nameserver.Do53Nameserver(host, int(port))]
        return found

    return resolver


async def test_the_search_list_is_gone_through_once_and_then_known(server):
    """A pod's ndots:5 makes three questions of one; only until the name is found."""
    full = "engines.default.svc.cluster.local"
    server.put(full, "A", "10.0.0.1")
    section = dns_section(server, port=8000, host="engines.default.svc", servers=[])
    search = "default.svc.cluster.local svc.cluster.local cluster.local"
    discovered = DnsDiscovery(section, time.monotonic, Random(7), system(server, search=search))
    async with following(discovered) as follower:
        await follower.sees(at("10.0.0.1"))
        await asked(server, 2)
        assert (
            server.questions[:5]
            == [f"udp A engines.default.svc.{each}." for each in search.split()]
            + [f"udp A {full}."] * 2
        )
        server.drop(full)
        await follower.says("no such name")
        server.put(full, "A", "10.0.0.2")
        await follower.sees(at("10.0.0.2"))


async def test_a_system_without_name_servers_is_a_problem_and_heals(server):
    server.put(NAME, "A", "10.0.0.1")
    files = [io.StringIO(""), io.StringIO("# nothing\n")]

    def resolver():
        return dns.asyncresolver.Resolver(files.pop()) if files else system(server)()

    section = dns_section(server, port=8000, servers=[])
    discovered = DnsDiscovery(section, time.monotonic, Random(7), resolver)
    async with following(discovered) as follower:
        await follower.says("no name server in /etc/resolv.conf")
        await follower.sees(at("10.0.0.1"))


HISTORY = """
import asyncio, json, random, sys, time, uvloop
from gateway.config.discovery import DnsDiscoveryConfig
from gateway.replicas.discovery.kinds import build

async def main():
    section = DnsDiscoveryConfig.model_validate(json.loads(sys.argv[1]))
    found = build(section, time.monotonic, random.Random(7))
    async with asyncio.timeout(20):
        async for snapshot in found.snapshots():
            print(len(snapshot), flush=True)
            return

uvloop.run(main())
"""


async def test_it_works_on_the_loop_that_serves(server):
    """The gateway runs on uvloop, whose datagrams are other code than asyncio's."""
    server.put(NAME, "A", *(f"10.0.{i // 200}.{i % 200}" for i in range(300)))
    section = dns_section(server, port=8000).model_dump_json()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", HISTORY, section, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert (process.returncode, json.loads(out)) == (0, 300)


def test_a_pause_has_a_floor_without_configuration():
    section = DnsDiscoveryConfig(kind="dns", host=NAME, port=8000)
    assert section.min_ttl_s >= 1.0 > SOON_S
