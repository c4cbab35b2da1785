"""From a model's section to what feeds it."""

import subprocess
import sys
import time
from random import Random

import pytest

from gateway.config.discovery import FileDiscoveryConfig
from gateway.config.fleet import ModelConfig
from gateway.replicas.discovery.dns import DnsDiscovery
from gateway.replicas.discovery.file import FileDiscovery
from gateway.replicas.discovery.kinds import build, discoveries
from gateway.replicas.discovery.static import StaticDiscovery

FILE = {"kind": "file", "path": "/replicas.yaml"}
DNS = {"kind": "dns", "host": "engines.test", "port": 8000}
LISTED = [{"url": "http://a:8000"}]


def model(**sections):
    return ModelConfig.model_validate(sections)


@pytest.mark.parametrize(
    ("sections", "kinds"),
    [
        ({"replicas": LISTED}, [("static", StaticDiscovery)]),
        ({"discovery": [FILE]}, [("file", FileDiscovery)]),
        (
            {"discovery": [DNS, FILE], "replicas": LISTED},
            [("static", StaticDiscovery), ("dns", DnsDiscovery), ("file", FileDiscovery)],
        ),
    ],
)
def test_a_model_is_fed_by_its_list_and_by_each_section(sections, kinds):
    found = list(discoveries(model(**sections), time.monotonic, Random(7)))
    assert [(kind, type(one)) for kind, one in found] == kinds


def test_a_section_is_built_by_its_kind():
    section = FileDiscoveryConfig.model_validate(FILE)
    assert isinstance(build(section, time.monotonic, Random(7)), FileDiscovery)


def test_a_gateway_without_dns_or_kubernetes_loads_none_of_their_clients():
    program = (
        "import sys, gateway.replicas.discovery.kinds\n"
        "print(sorted({'dns', 'lightkube', 'kubernetes'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
