"""deploy/compose.yaml, read as Compose reads it."""

from pathlib import Path

import pytest
import yaml

from gateway.config.load import load_config

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/compose.yaml"
COMPOSE = yaml.safe_load(FILE.read_text("utf-8"))
SERVICES = COMPOSE["services"]
SIMULATORS = [f"simulator-{n}" for n in range(3)]


def test_it_runs_a_gateway_valkey_and_three_simulators():
    assert sorted(SERVICES) == sorted(["gateway", "valkey", *SIMULATORS])


def test_builds_name_stages_of_the_dockerfile():
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    for name in ("gateway", *SIMULATORS):
        build = SERVICES[name]["build"]
        assert (FILE.parent / build["context"]).resolve() == ROOT
        assert f" AS {build['target']}\n" in dockerfile


def test_mounted_files_exist_and_are_read_only():
    mounts = [m.split(":") for service in SERVICES.values() for m in service.get("volumes", ())]
    assert mounts
    for source, _, mode in mounts:
        assert (FILE.parent / source).exists(), source
        assert mode == "ro"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_runs_with_the_least_it_needs(name: str):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    # Ours are non-root by the image; of the others it has to be said.
    assert "build" in service or int(service["user"].split(":")[0]) > 0


def test_only_the_gateway_is_published_and_only_on_this_machine():
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    assert published == {"gateway": ["127.0.0.1:8080:8080", "127.0.0.1:9090:9090"]}


def test_the_fleet_has_no_way_out():
    assert COMPOSE["networks"]["fleet"] == {"internal": True}
    for name in ("valkey", *SIMULATORS):
        assert SERVICES[name]["networks"] == ["fleet"]


def test_images_are_pinned_by_tag():
    for service in SERVICES.values():
        tag = service["image"].partition(":")[2]
        assert tag not in {"", "latest"}


def test_the_gateway_waits_for_the_simulators_it_routes_to():
    config = load_config(ROOT / "deploy/compose/gateway.yaml", {})
    (model,) = config.models
    assert [r.url for r in model.replicas] == [f"http://{name}:8000" for name in SIMULATORS]
    waits = SERVICES["gateway"]["depends_on"]
    assert waits == {name: {"condition": "service_healthy"} for name in SIMULATORS}


def test_the_gateway_listens_on_the_ports_that_are_published():
    config = load_config(ROOT / "deploy/compose/gateway.yaml", {})
    assert (config.listen.host, config.listen.port) == ("0.0.0.0", 8080)
    assert (config.admin.host, config.admin.port) == ("0.0.0.0", 9090)


def test_the_tokenizer_is_mounted_where_the_configuration_looks_for_it():
    (model,) = load_config(ROOT / "deploy/compose/gateway.yaml", {}).models
    sources = {m.split(":")[1]: m.split(":")[0] for m in SERVICES["gateway"]["volumes"]}
    assert (FILE.parent / sources[model.tokenizer] / "tokenizer.json").is_file()
