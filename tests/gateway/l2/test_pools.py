"""Pools over reloads, operators' commands, and what `check --connect` says of them."""

import io
import logging
from functools import partial

import pytest

from gateway.cli import main
from gateway.config.load import load_config
from gateway.connect import check_fleet
from gateway.l2.pools import SharedPools
from gateway.observability.logging import EventLog
from gateway.proxy.transport import HttpToolsTransport
from gateway.replicas.registry import Registry
from tests.support.background import some_background
from tests.support.engines import Engine
from tests.support.shared_caches import with_shared_cache

LOG = EventLog(logging.getLogger("test.pools"))


@pytest.fixture
def pools():
    registry = Registry((), None, lambda: 0.0, lambda _: None)
    background = some_background(LOG)
    transport = partial(HttpToolsTransport, lambda: 0.0)
    return SharedPools(registry, transport, background, LOG, lambda: 0.0)


def section(**fields):
    return with_shared_cache(["http://e:1"], {"kind": "assume_write_through", **fields}).models


async def test_a_reload_keeps_a_pool_whose_section_is_the_same(pools):
    pools.change(section())
    first = pools.get("default")
    pools.change(section())
    assert pools.get("default") is first
    pools.change(section(ttl_s=5.0))
    assert pools.get("default") is not first
    pools.change(with_shared_cache(["http://e:1"], None).models)
    assert pools.get("default") is None
    pools.close()


async def test_a_reload_changes_the_pool_of_a_running_gateway(gateways, engines):
    [engine] = await engines(Engine())
    gateway = await gateways(with_shared_cache([engine.url], {"kind": "assume_write_through"}))
    told = (await gateway.status())["models"][0]["shared_cache"]
    assert (told["kind"], told["chunk_tokens"], told["down"]) == ("assume_write_through", 256, None)
    assert told["break_even_tokens"]["L2"] > 0


def test_flush_asks_the_admin_api(capsys):
    assert main(["flush", "l2", "--admin", "http://127.0.0.1:9"]) == 1
    assert "no admin API" in capsys.readouterr().err


async def test_connect_shows_the_names_that_are_looked_for(engines, tmp_path):
    [engine] = await engines(Engine())
    pool = tmp_path / "l2"
    pool.mkdir()
    file = tmp_path / "gateway.yaml"
    file.write_text(f"""
models:
  - replicas: [{{url: '{engine.url}'}}]
    shared_cache: {{kind: lmcache_fs, paths: ['{pool}'], mode: multiprocess, stall_s: 5}}
""")
    out = io.StringIO()
    assert await check_fleet(load_config(file, {}), out) == 0
    assert "multiprocess names of /weights/m, world size 1; 0 names looked at" in out.getvalue()
    (pool / f"-SEP-other@0x01000100@0@{0:064x}.data").write_bytes(b"")
    out = io.StringIO()
    assert await check_fleet(load_config(file, {}), out) == 1
    assert "the files say model /other where model_path is /weights/m" in out.getvalue()
    pool.rename(tmp_path / "gone")
    out = io.StringIO()
    assert await check_fleet(load_config(file, {}), out) == 1
    assert "missing" in out.getvalue()


PROBLEMS = [
    ({"mode": "in_process"}, "needs the engines' PYTHONHASHSEED"),
    ({"mode": "multiprocess", "hash": "sha256_cbor"}, "hash blake3 belongs to mode multiprocess"),
    ({"mode": "in_process", "hash": "blake3"}, "hash blake3 belongs to mode multiprocess"),
    ({"mode": "multiprocess", "paths": ["relative"]}, "must be an absolute path"),
]


@pytest.mark.parametrize(("fields", "problem"), PROBLEMS)
def test_what_cannot_work_is_refused_with_its_cure(fields, problem):
    with pytest.raises(ValueError, match=problem):
        with_shared_cache(["http://e:1"], {"kind": "lmcache_fs", "paths": ["/p"], **fields})
