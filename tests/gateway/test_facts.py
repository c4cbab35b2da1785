"""What replicas say about themselves, as a real engine said it."""

from pathlib import Path

import pytest

from gateway.kvevents.subscriber import Source
from gateway.replicas import facts
from gateway.replicas.registry import ServedModel

DATA = Path("tests/data/vllm-0.32")


def body_of(name):
    return (DATA / name).read_bytes().partition(b"\r\n\r\n")[2] or (
        DATA / name
    ).read_bytes().partition(b"\n\n")[2]


def test_models():
    found = facts.served_models((DATA / "v1_models.json").read_bytes())
    assert found == (ServedModel("smollm2-135m", None, 4096),)


def test_the_base_model_comes_before_its_adapters():
    body = b'{"data":[{"id":"lora","parent":"base"},{"id":"base","parent":null}]}'
    assert [model.name for model in facts.served_models(body)] == ["base", "lora"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data":[{}]}', b'{"data":[5]}'])
def test_what_is_no_model_list(body):
    with pytest.raises(ValueError, match="not a list of models"):
        facts.served_models(body)


def test_event_sources_get_the_replicas_own_host():
    source = facts.kv_event_source(body_of("kv_event_sources.http"), "http://10.0.0.7:8000")
    assert source == Source("tcp://10.0.0.7:15557", "tcp://127.0.0.1:15558", "kv@A")


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
    assert facts.kv_event_source(body, url) == Source(expected)


@pytest.mark.parametrize("body", [b"{}", b'{"0":{"enable_kv_cache_events":false}}'])
def test_no_events(body):
    assert facts.kv_event_source(body, "http://a:1") is None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"0":5}', b'{"0":{"enable_kv_cache_events":true}}'])
def test_what_is_no_map_of_sources(body):
    with pytest.raises(ValueError, match="not a map"):
        facts.kv_event_source(body, "http://a:1")


def test_the_cache_config_of_a_real_scrape():
    page = (DATA / "metrics_A.txt").read_text()
    assert facts.cache_config(page) == (32, 1456)
    assert facts.metric_value(page, "process_start_time_seconds") == 1.79596888194e09
    assert facts.metric_value(page, "missing") is None
    assert facts.cache_config("") == (None, None)


def test_an_engine_without_a_block_size_says_none():
    assert facts.cache_config('vllm:cache_config_info{block_size="None"} 1.0') == (None, None)
