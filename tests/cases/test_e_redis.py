"""Area E over Redis: replicas that leave, and more events than Redis takes at once."""

import signal

import pytest

from tests.support.engines import Engine
from tests.support.event_fleets import SIZE, candidates, follows, holds, tokens
from tests.support.listed import write_list
from tests.support.publishers import Publisher, stored
from tests.support.replicas import until
from tests.support.several import sees, several

__all__ = ["several"]


@pytest.fixture
async def publishing(engines, publishers):
    (publisher,) = await publishers(Publisher())
    (replica,) = await engines(Engine(block_size=SIZE, sources={"0": publisher.source()}))
    return replica, publisher


async def test_e110_a_replica_that_leaves_is_gone_for_every_gateway(
    several, publishing, engines, own_redis, tmp_path
):
    leaving, publisher = publishing
    (staying,) = await engines(Engine(block_size=SIZE))
    listed = tmp_path / "replicas.yaml"
    write_list(listed, staying, leaving)
    model = {
        "name": "m",
        "discovery": [{"kind": "file", "path": str(listed), "interval_s": 0.02}],
    }
    publisher.keep(stored(range(1, 1001), tokens(1000)))
    gateways = await several(own_redis(), [staying], models=[model])
    for gateway in gateways:
        await sees(gateway, 2)
        await holds(gateway, tokens(1000), leaving, 1000)
    for number in range(50):
        await publisher.send(stored([20_000 + number], tokens(1, 50_000 + number * SIZE)))
    write_list(listed, staying)
    for gateway in gateways:
        await until(lambda g=gateway: _is_gone(g, leaving), "the end of the replica")
    publisher.buffer.clear()
    write_list(listed, staying, leaving)
    for gateway in gateways:
        await until(lambda g=gateway: _is_there(g, leaving), "the replica again")
        await holds(gateway, tokens(1000), leaving, 0)
        await holds(gateway, tokens(1, 50_000), leaving, 0)


async def _is_gone(gateway, replica):
    return not await _is_there(gateway, replica)


async def _is_there(gateway, replica):
    return replica.name in await candidates(gateway, [1])


async def test_e118_a_flood_while_redis_stands_still_is_made_up_for(several, publishing, own_redis):
    """Scaled: 500 batches of 20 blocks, and Redis does not answer meanwhile."""
    replica, publisher = publishing
    server = own_redis()
    gateways = await several(server, [replica], index={"reply_timeout_s": 5.0})
    for gateway in gateways:
        await sees(gateway, 2)
        await until(lambda g=gateway: follows(g, replica), "step")
    server.process.send_signal(signal.SIGSTOP)
    for number in range(500):
        base = number * 20
        ids = tokens(20, base * SIZE)
        await publisher.send(stored(range(base + 1, base + 21), ids))
        if not number % 50:
            body = {"model": "m", "prompt": [1, 2, 3]}
            assert (await gateways[0].client.post("/v1/completions", json=body)).status_code == 200
    server.resume()
    for gateway in gateways:
        for number in (0, 250, 499):
            await holds(gateway, tokens(20, number * 20 * SIZE), replica, 20)
