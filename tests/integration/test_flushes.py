"""What one gateway is told to forget of a shared pool, all forget that share a Redis."""

import asyncio
import io

from gateway import cli_admin
from gateway.cli import _parser
from gateway.config.load import config_from_flags
from tests.support.engines import Engine
from tests.support.fixtures import engines
from tests.support.replicas import until
from tests.support.several import sees, several

__all__ = ["engines", "several"]

WRITE_THROUGH = {"kind": "assume_write_through", "chunk_tokens": 16}


async def known(gateway):
    return await gateway.metric('warmroute_shared_cache_known_chunks{model="default"}')


async def learns(gateway):
    """Have a prompt computed through this gateway, so that its pool is taken to have it."""
    body = {"model": "m", "prompt": [*range(64)]}
    answer = await gateway.client.post("/v1/completions", json=body)
    assert answer.status_code == 200

    async def has_learned():
        return await known(gateway) == 4

    await until(has_learned, "what is known of the pool")


async def forgets(gateway):
    async def has_forgotten():
        return await known(gateway) == 0

    await until(has_forgotten, "the flush")


async def start_two(several, server, engines):
    [engine] = await engines(Engine())
    [model] = config_from_flags([engine.url]).model_dump(exclude_defaults=True)["models"]
    gateways = await several(server, [engine], 2, models=[model | {"shared_cache": WRITE_THROUGH}])
    for gateway in gateways:
        await sees(gateway, 2)
        await learns(gateway)
    return gateways


async def command(gateway):
    """Return what `warmroute flush l2` prints; the gateway runs in this loop, so in a thread."""
    out, admin = io.StringIO(), gateway.gateway.admin_url
    given = _parser().parse_args(["flush", "l2", "--admin", admin])
    assert await asyncio.to_thread(cli_admin.call, given, out, out) == 0
    return out.getvalue()


async def test_a_flush_at_one_gateway_reaches_the_other(several, own_redis, engines):
    asked, other = await start_two(several, own_redis(), engines)
    told = (await asked.admin.post("/admin/flush", params={"tier": "L2"})).json()
    assert told["flushed"] == {"default": 4}
    assert told["gateways"]["live"] == (await other.status())["gateways"]["live"]
    await forgets(other)
    [line] = [line for line in other.log if line["event"] == "flushed_elsewhere"]
    assert (line["model"], line["chunks"]) == ("default", 4)
    assert line["gateway"] == told["gateways"]["id"]
    await learns(other)
    assert await command(other) == "default: 4 forgotten\nother gateways told: 1\n"


async def test_a_flush_while_redis_is_away_reaches_the_other_when_it_is_back(
    several, own_redis, engines
):
    server = own_redis()
    asked, other = await start_two(several, server, engines)
    server.stop()

    async def is_cut_off():
        return (await asked.status())["gateways"]["heard_s_ago"] > 1.0

    await until(is_cut_off, "a second of silence")
    assert await command(asked) == (
        "default: 4 forgotten\nother gateways cannot be told now, and will be once Redis is back\n"
    )
    assert await known(other) == 4
    server.start()
    await forgets(other)
    assert await known(asked) == 0
