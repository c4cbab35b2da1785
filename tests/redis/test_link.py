"""The link to one server: replies, deadlines, and every way in which a server can be gone."""

import asyncio
import signal
import ssl
import time
from hashlib import sha1

import pytest
import trustme

from gateway.redis import node
from gateway.redis.breaker import LATE_FOR_S
from gateway.redis.errors import CallRefused, LinkDown, LinkError, LinkTimeout
from gateway.redis.link import Call
from gateway.redis.node import Dialing, LinkState
from gateway.redis.scripts import Script
from tests.support.ports import free_port
from tests.support.redis_servers import LogLines
from tests.support.replicas import until


def script(text, *, writes=False):
    return Script("test", text.encode(), sha1(text.encode()).hexdigest().encode(), writes)


ECHO = script("return ARGV[1]")
SET = script("return redis.call('SET', KEYS[1], ARGV[1])", writes=True)
GET = script("return redis.call('GET', KEYS[1])")


async def test_a_script_runs_although_the_server_never_saw_it(redis_server, links):
    redis_server.command("SCRIPT", "FLUSH")
    link = await links(redis_server.url)
    assert await link.call(ECHO, [b"k"], [b"hello"], 5.0) == b"hello"
    assert await link.call(SET, [b"k"], [7], 5.0) == b"OK"
    assert await link.call(GET, [b"k"], [], 5.0) == b"7"


async def test_many_calls_go_at_once_and_an_error_is_the_answer_of_its_own_call(
    redis_server, links
):
    link = await links(redis_server.url)
    bad = script("return redis.call('LPUSH', KEYS[1], 1)", writes=True)
    calls = [Call(SET, [b"a"], [1]), Call(bad, [b"a"], []), Call(GET, [b"none"], [])]
    stored, refused, missing = await link.call_many(calls, 5.0)
    assert (stored, missing) == (b"OK", None)
    assert isinstance(refused, CallRefused)
    with pytest.raises(CallRefused):
        await link.call(bad, [b"a"], [], 5.0)
    assert await link.call_many([], 5.0) == []


async def test_a_call_ends_at_its_deadline_and_the_connection_lives_on(own_redis, links):
    server = own_redis()
    link = await links(server.url, reply_timeout_s=30.0)
    before = server.command("INFO", "stats")["total_connections_received"]
    server.pause()
    with pytest.raises(LinkTimeout):
        await link.call(ECHO, [b"k"], [b"late"], 0.01)
    server.resume()
    assert await link.call(ECHO, [b"k"], [b"next"], 5.0) == b"next", "not the late reply"
    after = server.command("INFO", "stats")["total_connections_received"]
    assert after == before + 1, "the one that asks"


async def test_a_caller_that_leaves_takes_nothing_with_it(redis_server, links):
    link = await links(redis_server.url)
    left = asyncio.create_task(link.call(ECHO, [b"k"], [b"a"], 5.0))
    await asyncio.sleep(0)
    left.cancel()
    assert await link.call(ECHO, [b"k"], [b"b"], 5.0) == b"b"


async def test_callers_that_leave_say_nothing_about_the_server(own_redis, links):
    """Clients that hang up while their look-up runs, one after the other."""
    server = own_redis()
    link = await links(server.url, reply_timeout_s=30.0)
    server.pause()
    began = time.monotonic()
    while time.monotonic() < began + 2 * LATE_FOR_S:
        left = asyncio.create_task(link.call(ECHO, [b"k"], [b""], 5.0))
        await asyncio.sleep(0.01)
        left.cancel()
        await asyncio.wait({left})
    assert link.state is LinkState.UP
    assert not link._metrics.failures.collect()[0].samples
    server.resume()


async def test_late_reads_are_given_up_and_come_back_with_the_server(own_redis, links):
    server, log = own_redis(), LogLines()
    link = await links(server.url, log=log, reply_timeout_s=30.0)
    server.pause()
    async with asyncio.timeout(10):
        while link.state is LinkState.UP:
            with pytest.raises(LinkTimeout):
                await link.call(ECHO, [b"k"], [b""], 0.01)
    with pytest.raises(LinkDown) as down:
        await link.call(ECHO, [b"k"], [b""], 5.0)
    assert down.value.reason == "slow"
    server.resume()
    await until(lambda: log.states()[-1] == "up")
    assert log.states() == ["up", "slow", "up"]


async def test_how_late_is_too_late_is_what_the_configuration_says_now(own_redis, links):
    server, limit_s = own_redis(), 5.0
    link = await links(server.url, reply_timeout_s=30.0, fast_limit_s=lambda: limit_s)
    server.pause()
    async with asyncio.timeout(10):
        while link.state is LinkState.UP:
            with pytest.raises(LinkTimeout):
                await link.call(ECHO, [b"k"], [b""], 0.01)
    limit_s = 0.0
    server.resume()
    pings = "cmdstat_ping"
    began = server.command("INFO", "commandstats")[pings]["calls"]
    await until(lambda: server.command("INFO", "commandstats")[pings]["calls"] > began + 1)
    assert link.state is LinkState.SLOW, "no ping takes no time"
    limit_s = 5.0
    await until(lambda: link.state is LinkState.UP)


async def test_a_server_that_is_silent_counts_as_down(own_redis, links):
    server, log = own_redis(), LogLines()
    link = await links(server.url, log=log, reply_timeout_s=1.0)
    server.pause()
    with pytest.raises(LinkError):
        await link.call(SET, [b"k"], [1], 5.0)
    assert link.state is LinkState.DOWN
    server.resume()
    await until(lambda: log.states()[-1] == "up")
    assert log.states() == ["up", "down", "up"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_stopped_server_is_one_line_and_comes_back_by_itself(own_redis, links, how):
    server, log = own_redis(), LogLines()
    link = await links(server.url, log=log)
    server.stop(how)
    await until(lambda: link.state is LinkState.DOWN)
    with pytest.raises(LinkDown):
        await link.call(ECHO, [b"k"], [b""], 5.0)
    server.start()
    await until(lambda: log.states()[-1] == "up")
    assert await link.call(ECHO, [b"k"], [b"x"], 5.0) == b"x"
    assert log.states() == ["up", "down", "up"]
    assert link.num_met == 2


async def test_a_server_whose_connections_break_is_no_other_one(own_redis, links):
    server, log = own_redis(), LogLines()
    link = await links(server.url, log=log)
    for times in (2, 3, 4):
        server.command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
        await until(lambda n=times: log.states().count("up") == n, "the next connection")
    assert link.num_met == 1


async def test_a_server_that_does_not_say_who_it_is_is_another_one_each_time(own_redis, links):
    server, log = own_redis(), LogLines()
    server.command("ACL", "SETUSER", "default", "-info")
    link = await links(server.url, log=log)
    server.command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
    await until(lambda: link.num_met == 2)


async def test_starting_without_a_server_works(own_redis, links):
    server, log = own_redis(start=False), LogLines()
    link = await links(server.url, wait_up=False, log=log)
    await until(lambda: log.states() == ["down"])
    with pytest.raises(LinkDown):
        await link.call(ECHO, [b"k"], [b""], 5.0)
    server.start()
    await until(lambda: link.state is LinkState.UP)


async def test_a_host_whose_name_is_none_is_down_and_asked_for_again(links):
    """A name with an empty label is no error of the network: Python refuses to encode it."""
    log = LogLines()
    link = await links("redis://redis..example", wait_up=False, log=log)
    await until(lambda: log.states() == ["down"])
    assert log.lines[0]["reason"] == "unreachable"
    assert not link._task.done()


async def test_a_connection_that_breaks_while_another_is_tried_is_not_taken(
    own_redis, links, monkeypatch
):
    """In a storm of resets one may go in the moment in which the other is asked for a write."""
    server, made, asked = own_redis(), [], []
    dial, why_no_writes = Dialing.dial, node._why_no_writes

    async def remembered(self, endpoint, on_lost):
        made.append(await dial(self, endpoint, on_lost))
        return made[-1]

    async def while_the_first_breaks(connection, key):
        refused = await why_no_writes(connection, key)
        if not asked:
            made[0].close()
            await until(lambda: made[0]._transport is None, "its end to be noticed")
        asked.append(key)
        return refused

    monkeypatch.setattr(Dialing, "dial", remembered)
    monkeypatch.setattr(node, "_why_no_writes", while_the_first_breaks)
    link = await links(server.url, wait_up=False)
    await until(lambda: len(asked) > 1 and link.state is LinkState.UP, "two more connections")
    assert await link.call(ECHO, [b"k"], [b"x"], 5.0) == b"x"


async def test_each_script_has_its_own_calls_counted(redis_server, links):
    link = await links(redis_server.url)
    other = Script("other", ECHO.text, ECHO.digest, writes=True)
    await link.call_many([Call(SET, [b"a"], [1]), Call(other, [b"a"], [1])], 5.0)
    counted = link._metrics.calls
    assert [counted.labels(name)._value.get() for name in ("test", "other")] == [1, 1]


async def test_a_replica_answers_reads_until_the_address_points_to_a_primary(own_redis, links):
    """F122: a managed endpoint after a fail-over; writes begin again as soon as they can."""
    primary, server, log = own_redis(), own_redis(), LogLines()
    link = await links(server.url, log=log)
    server.command("REPLICAOF", "127.0.0.1", primary.port)
    with pytest.raises(CallRefused) as refused:
        await link.call(SET, [b"k"], [1], 5.0)
    assert refused.value.code == "READONLY"
    assert link.state is LinkState.READ_ONLY
    with pytest.raises(LinkDown):
        await link.call(SET, [b"k"], [1], 5.0)
    assert await link.call(ECHO, [b"k"], [b"read"], 5.0) == b"read"
    server.command("REPLICAOF", "NO", "ONE")
    await until(lambda: log.states()[-1] == "up")
    assert await link.call(SET, [b"k"], [1], 5.0) == b"OK"
    assert log.states() == ["up", "read_only", "up"]
    assert link.num_met > 1, "another server may be behind the same name now"


async def test_a_full_memory_refuses_writes_and_answers_reads(own_redis, links):
    """F127: noeviction."""
    server = own_redis("--maxmemory-policy", "noeviction")
    link = await links(server.url)
    await link.call(SET, [b"k"], [1], 5.0)
    server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(CallRefused):
        await link.call(SET, [b"k"], [2], 5.0)
    assert link.state is LinkState.READ_ONLY
    assert await link.call(GET, [b"k"], [], 5.0) == b"1"
    server.command("CONFIG", "SET", "maxmemory", "0")
    await until(lambda: link.state is LinkState.UP)


async def test_a_password_is_given_and_never_told(own_redis, links):
    server, log = own_redis(start=False), LogLines()
    server.options = ("--requirepass", "secret")
    link = await links(f"redis://:wrong@127.0.0.1:{server.port}", wait_up=False, log=log)
    server.command = lambda *_: True
    server.start()
    await until(lambda: any(line["reason"] == "wrongpass" for line in log.lines))
    right = await links(f"redis://:secret@127.0.0.1:{server.port}/3", log=log)
    assert await right.call(ECHO, [b"k"], [b"x"], 5.0) == b"x"
    assert link.state is LinkState.DOWN
    assert "secret" not in str(log.lines)


async def test_tls_to_a_server_whose_certificate_is_right_and_to_no_other(
    own_redis, links, tmp_path
):
    authority, stranger = trustme.CA(), trustme.CA()
    made = authority.issue_cert("localhost")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    port = free_port()
    own_redis(
        *("--tls-port", str(port), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(tmp_path / "cert.pem")),
        *("--tls-key-file", str(tmp_path / "key.pem")),
        *("--tls-ca-cert-file", str(tmp_path / "cert.pem")),
    )
    context = ssl.create_default_context()
    authority.configure_trust(context)
    link = await links(f"rediss://localhost:{port}", tls=context)
    assert await link.call(ECHO, [b"k"], [b"x"], 5.0) == b"x"
    wrong, log = ssl.create_default_context(), LogLines()
    stranger.configure_trust(wrong)
    await links(f"rediss://localhost:{port}", tls=wrong, log=log, wait_up=False)
    await until(lambda: log.states() == ["down"])
