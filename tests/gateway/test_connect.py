"""`warmroute check FILE --connect`: what it prints of a fleet, and its exit status."""

import io
import json
import subprocess
import sys

import pytest
import yaml

from gateway.config.load import load_config
from gateway.connect import check_fleet
from tests.support.engines import Balancer, Engine


@pytest.fixture
def checked(tmp_path):
    """Return status and lines of a check: `await checked(name="m", replicas=[...])`."""

    async def check(**model):
        file = tmp_path / "gateway.yaml"
        file.write_text(yaml.safe_dump({"models": [model], "health": {"timeout_s": 5.0}}))
        out = io.StringIO()
        status = await check_fleet(load_config(file, {}), out)
        return status, out.getvalue().splitlines()

    return check


def listed(*engines):
    return [{"url": engine.url} for engine in engines]


async def test_a_fleet_that_fits(engines, checked):
    [engine] = await engines(Engine())
    said = "serves m, vLLM 0.32.0, block size 16, 1000 blocks, max_model_len 4096, no KV events"
    assert await checked(name="m", replicas=listed(engine)) == (
        0,
        [
            "  model m",
            f"    replica {engine.name}: {said}",
            "  no problems",
        ],
    )


async def test_each_problem_has_its_line(engines, checked):
    one, other = await engines(Engine(), Engine(models=[{"id": "m", "max_model_len": 99}]))
    [balancer] = await engines(Balancer([one, other]))
    [sick] = await engines(Engine(statuses={"/health": b"503 Service Unavailable"}))
    status, lines = await checked(
        name="m", block_size=32, replicas=listed(one, other, balancer, sick)
    )
    text = "\n".join(lines)
    assert status == 1
    assert text.count("configured as 32, but the engine has 16") == 3
    assert text.count("several engines answer at this address") == 1
    assert f"    replica {sick.name}: problem: not healthy (status_503)" in lines
    assert "its max_model_len is 99, but most replicas of the model have 4096" in text
    assert lines[-1].strip().split()[1] == "problems"


async def test_replicas_that_a_discovery_finds_are_asked_too(engines, checked, tmp_path):
    [engine] = await engines(Engine())
    found = tmp_path / "fleet.json"
    found.write_text(json.dumps([{"url": engine.url, "name": "engine-0"}]))
    discovery = [{"kind": "file", "path": str(found)}]
    status, lines = await checked(name="m", discovery=discovery)
    assert (status, lines[1]) == (0, "    discovery file: 1 found")
    assert lines[2].startswith("    replica engine-0: serves m")


async def test_a_discovery_that_finds_nothing_is_a_problem(checked, tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.connect.DISCOVERY_TIMEOUT_S", 0.2)
    discovery = [{"kind": "file", "path": str(tmp_path / "absent.json")}]
    status, lines = await checked(name="m", discovery=discovery)
    assert status == 1
    assert lines[1].startswith("    discovery file: problem: ")


def test_the_command_tells_an_unreachable_replica_with_exit_1(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("models: [{name: m, replicas: [{url: 'http://127.0.0.1:9'}]}]\n")
    command = [sys.executable, "-m", "gateway.cli", "check", str(file)]
    offline = subprocess.run(command, capture_output=True, text=True, check=False)
    online = subprocess.run([*command, "--connect"], capture_output=True, text=True, check=False)
    assert (offline.returncode, online.returncode, online.stderr) == (0, 1, "")
    assert online.stdout.startswith(offline.stdout)
    assert "replica 127.0.0.1:9: problem: not healthy (unreachable)" in online.stdout
