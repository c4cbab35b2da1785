"""What replicas say about themselves, as a real engine said it."""

import json
from pathlib import Path

import pytest

from gateway.kvevents.subscriber import Source
from gateway.replicas import facts
from gateway.replicas.facts import EnginePage, ServedModel

DATA = Path("tests/data/vllm-0.32")


def body_of(name):
    return (DATA / name).read_bytes().partition(b"\r\n\r\n")[2] or (
        DATA / name
    ).read_bytes().partition(b"\n\n")[2]


def test_models():
    found = facts.served_models((DATA / "v1_models.json").read_bytes())
    assert found == (ServedModel("smollm2-135m", None, 4096, "/models/smollm2-135m"),)


def test_the_base_model_comes_before_its_adapters():
    body = b'{"data":[{"id":"lora","parent":"base"},{"id":"base","parent":null}]}'
    assert [model.name for model in facts.served_models(body)] == ["base", "lora"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data":[{}]}', b'{"data":[5]}'])
def test_what_is_no_model_list(body):
    with pytest.raises(ValueError, match="not a list of models"):
        facts.served_models(body)


def test_event_sources_get_the_replicas_own_host():
    sources = facts.kv_event_sources(body_of("kv_event_sources.http"), "http://10.0.0.7:8000")
    assert sources == {0: Source("tcp://10.0.0.7:15557", "tcp://127.0.0.1:15558", "kv@A")}


@pytest.mark.parametrize(
    ("endpoint", "url", "expected"),
    [
        ("tcp://*:5557", "http://[fd00::1]:8000", "tcp://[fd00::1]:5557"),
        ("tcp://0.0.0.0:5557", "http://a:8000", "tcp://a:5557"),
        ("tcp://[::]:5557", "http://a:8000", "tcp://a:5557"),
        ("tcp://10.1.2.3:5557", "http://a:8000", "tcp://10.1.2.3:5557"),
    ],
)
def test_addresses_that_an_engine_binds(endpoint, url, expected):
    body = b'{"0":{"enable_kv_cache_events":true,"endpoint":"%b"}}' % endpoint.encode()
    assert facts.kv_event_sources(body, url) == {0: Source(expected)}


def test_every_data_parallel_rank_has_a_source_of_its_own():
    ranks = {
        str(rank): {"enable_kv_cache_events": rank != 1, "endpoint": f"tcp://*:{5557 + rank}"}
        for rank in (10, 2, 1)
    }
    body = json.dumps(ranks).encode()
    assert facts.kv_event_sources(body, "http://a:1") == {
        10: Source("tcp://a:5567"),
        2: Source("tcp://a:5559"),
    }


@pytest.mark.parametrize("body", [b"{}", b'{"0":{"enable_kv_cache_events":false}}'])
def test_no_events(body):
    assert facts.kv_event_sources(body, "http://a:1") == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"0":5}',
        b'{"x":{"enable_kv_cache_events":true,"endpoint":"e"}}',
        b'{"0":{"enable_kv_cache_events":true}}',
    ],
)
def test_what_is_no_map_of_sources(body):
    with pytest.raises(ValueError, match="not a map"):
        facts.kv_event_sources(body, "http://a:1")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"5"])
def test_what_is_no_version(body):
    with pytest.raises(ValueError, match="not a version"):
        facts.version(body)


def test_a_version():
    assert facts.version(b'{"version":"0.32.0"}') == "0.32.0"


def test_the_engine_of_a_real_scrape():
    page = (DATA / "metrics_A.txt").read_bytes()
    assert facts.engine_page(page) == EnginePage(1.79596888194e09, (0,), 32, 1456, "sha256")


def test_a_page_that_says_nothing():
    assert facts.engine_page(b"") == EnginePage()
    assert facts.metric_value(b"missing_total 1\nmissing_x 2\n", "missing") is None


def test_every_engine_behind_an_address_is_a_rank():
    config = 'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="%d"} 1.0\n'
    page = "".join(config % (rank, 100 + rank) for rank in (1, 0)).encode()
    assert facts.engine_page(page) == EnginePage(None, (0, 1), 16, 101, None)


def test_an_engine_without_a_block_size_says_none():
    page = facts.engine_page(b'vllm:cache_config_info{block_size="None"} 1.0')
    assert (page.block_size, page.num_blocks, page.ranks) == (None, None, (0,))


@pytest.mark.parametrize(
    ("page", "value"),
    [
        (b"a 1\n", 1.0),
        (b"# HELP a text\n# TYPE a gauge\na 2.5", 2.5),
        (b'a_b 1\na{x="y"} 3\na 4\n', 3.0),
        (b"a nonsense\n", None),
        (b"ba 1\n", None),
    ],
)
def test_the_first_sample_of_a_metric(page, value):
    assert facts.metric_value(page, "a") == value
