"""`warmroute check --connect`: what it says of Redis."""

import pytest

from gateway.config.index import IndexConfig
from gateway.redis.checking import look
from gateway.redis.dialing import dialing_of
from tests.support.redis_servers import cluster_url, dialing


async def said(url, **changes):
    return await look(IndexConfig(backend="redis", url=url), dialing(url, **changes))


async def test_a_server_says_what_it_is(redis_server):
    lines, num_problems = await said(redis_server.url)
    assert num_problems == 0
    assert lines[0] == f"  index in Redis at 127.0.0.1:{redis_server.port}"
    assert f"server 127.0.0.1:{redis_server.port}: Redis " in lines[1]
    assert lines[1].endswith("no limit, noeviction")


async def test_valkey_goes_by_its_own_name(valkey_server):
    lines, _ = await said(valkey_server.url)
    assert ": Valkey " in lines[1]


async def test_a_cluster_names_its_primaries(redis_cluster):
    lines, num_problems = await said(cluster_url(redis_cluster[:1]))
    assert (num_problems, len(lines)) == (0, 4)
    lines, num_problems = await said(redis_cluster[0].url)
    assert num_problems == 1
    assert "use redis+cluster" in lines[2]


async def test_a_server_that_is_not_there(own_redis):
    server = own_redis(start=False)
    lines, num_problems = await said(server.url)
    assert (lines[1], num_problems) == ("    problem: not reached (unreachable)", 1) or (
        lines[1].endswith("problem: unreachable") and num_problems == 1
    )


async def test_why_no_cluster_and_no_sentinel_answers_is_said(own_redis, redis_server):
    gone = own_redis(start=False)
    for scheme, path in (("redis+cluster", ""), ("redis+sentinel", "/p")):
        lines, _ = await said(f"{scheme}://127.0.0.1:{gone.port}{path}")
        assert lines[1] == "    problem: not reached (unreachable)"
    lines, _ = await said(cluster_url([redis_server]))
    assert lines[1] == "    problem: not reached (no_cluster)"


@pytest.mark.parametrize(
    ("policy", "says"),
    [("noeviction", "all writes stop"), ("allkeys-random", "may drop"), ("volatile-lru", None)],
)
async def test_memory_policies(own_redis, policy, says):
    server = own_redis("--maxmemory", "100mb", "--maxmemory-policy", policy)
    lines, num_problems = await said(server.url)
    assert num_problems == (says is not None)
    assert says is None or says in lines[2]


async def test_a_replica_is_no_primary(own_redis, redis_server):
    server = own_redis("--replicaof", f"127.0.0.1 {redis_server.port}")
    lines, _ = await said(server.url)
    assert "takes no writes" in lines[2]


def test_credentials_come_from_the_url_or_from_keys_of_their_own():
    config = IndexConfig(backend="redis", url="redis://u:first-pw@r:7000", password="second-pw")
    made = dialing_of(config, lambda: 0.0, None, lambda: 0.003)
    assert (made.credentials.username, made.credentials.password) == ("u", "second-pw")
    assert made.tls is None
    assert "first-pw" not in repr(config) + repr(made)
    assert "second-pw" not in repr(config) + repr(made)


def test_tls_is_checked_unless_told_otherwise():
    config = IndexConfig(backend="redis", url="rediss://r")
    assert dialing_of(config, lambda: 0.0, None, lambda: 0.003).tls.check_hostname
    loose = IndexConfig(backend="redis", url="rediss://r", tls={"verify": False})
    assert not dialing_of(loose, lambda: 0.0, None, lambda: 0.003).tls.check_hostname
