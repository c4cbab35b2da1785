from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.config import GatewayConfig, check_file
from gateway.config.discovery import (
    DnsDiscoveryConfig,
    KubernetesDiscoveryConfig,
    name_server,
)

FILE = {"kind": "file", "path": "/replicas.yaml"}
DNS = {"kind": "dns", "host": "engines.test"}
KUBERNETES = {"kind": "kubernetes", "port": 8000}


@pytest.mark.parametrize(
    "model",
    [
        {"replicas": [{"url": "http://a"}]},
        {"discovery": [FILE]},
        {"replicas": [], "discovery": [FILE]},
        {"replicas": [{"url": "http://a"}], "discovery": [FILE, {**DNS, "port": 8000}]},
    ],
)
def test_a_model_has_listed_or_found_replicas_or_both(model: dict[str, object]) -> None:
    GatewayConfig.model_validate({"models": [model]})


@pytest.mark.parametrize("model", [{}, {"replicas": []}, {"discovery": []}])
def test_a_model_without_any_is_refused(model: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="replica"):
        GatewayConfig.model_validate({"models": [model]})


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("10.96.0.10", ("10.96.0.10", 53)),
        ("10.0.0.2:8600", ("10.0.0.2", 8600)),
        ("fd00::a", ("fd00::a", 53)),
        ("[fd00::A]:8600", ("fd00::a", 8600)),
    ],
)
def test_a_name_server_is_an_address_and_perhaps_a_port(text: str, server: tuple[str, int]) -> None:
    assert name_server(text) == server


@pytest.mark.parametrize(
    "text",
    ["", "dns.test", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:x", "[10.0.0.1]:53", "[::1]", "[::1"],
)
def test_other_name_servers_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        name_server(text)


@pytest.mark.parametrize(
    ("host", "is_name"),
    [
        ("engines", True),
        ("Engines.Default.SVC.", True),
        ("a" * 63 + ".test", True),
        ("a" * 64 + ".test", False),
        (".".join(["abc"] * 64), False),
        ("", False),
        (".", False),
        ("a..b", False),
        ("-a.test", False),
        ("http://a.test", False),
        ("10.0.0.1", False),
        ("a b", False),
    ],
)
def test_a_host_is_a_dns_name(host: str, is_name: bool) -> None:
    if is_name:
        section = DnsDiscoveryConfig.model_validate({**DNS, "host": host, "port": 1})
        assert section.host == host.lower()
    else:
        with pytest.raises(ValidationError):
            DnsDiscoveryConfig.model_validate({**DNS, "host": host, "port": 1})


@pytest.mark.parametrize("port", [8000, "http", "http-8000", "p"])
def test_a_kubernetes_port_is_a_number_or_a_name(port: object) -> None:
    section = {**KUBERNETES, "service": "engines", "port": port}
    assert KubernetesDiscoveryConfig.model_validate(section).port == port


@pytest.mark.parametrize("port", [0, 65536, "8000", "HTTP", "a" * 16, 8000.0, True, None, "-a"])
def test_other_kubernetes_ports_are_refused_once(port: object) -> None:
    section = {**KUBERNETES, "service": "engines", "port": port}
    with pytest.raises(ValidationError) as caught:
        KubernetesDiscoveryConfig.model_validate(section)
    assert caught.value.error_count() == 1


def test_the_query_is_for_the_host_or_for_its_service() -> None:
    by_port = DnsDiscoveryConfig.model_validate({**DNS, "port": 8000})
    by_service = DnsDiscoveryConfig.model_validate({**DNS, "service": "HTTP"})
    assert by_port.query_name == "engines.test"
    assert by_service.query_name == "_http._tcp.engines.test"


def test_check_tells_where_it_would_look(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "models:\n"
        "  - name: m\n"
        "    discovery:\n"
        "      - {kind: file, path: /replicas.yaml}\n"
        "      - {kind: dns, host: engines.test, port: 8000}\n"
        "      - {kind: dns, host: engines.test, service: http}\n"
        "      - {kind: kubernetes, service: engines, port: http}\n"
        '      - {kind: kubernetes, namespace: ml, selector: "app=engines", port: 8000}\n'
    )
    out = StringIO()
    assert check_file(file, {}, out) == 0
    assert [line for line in out.getvalue().splitlines() if " discovery " in line] == [
        "    discovery file: /replicas.yaml",
        "    discovery dns: engines.test, port 8000",
        "    discovery dns: SRV _http._tcp.engines.test",
        "    discovery kubernetes: Service engines in namespace (own), port http",
        "    discovery kubernetes: pods app=engines in namespace ml, port 8000",
    ]
