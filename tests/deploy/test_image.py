"""The images: what is in them, and that they start as a user without rights."""

import json
import os
import select
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
# A cold start of all libraries takes 5 s on 2 idle cores; this is for busy ones.
READY_DEADLINE_S = 60.0

# The first test that runs builds the images: 40 s, most of it for downloads and unpacking, and five
# minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)


def test_hadolint_finds_nothing(require):
    hadolint = ROOT / ".venv/bin/hadolint"
    require("hadolint", hadolint.exists(), "make setup")
    done = subprocess.run(
        [hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def site_packages(stage) -> list[str]:
    (folder,) = stage.at("/opt/warmroute/lib").glob("python3.*/site-packages")
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("name", ["gateway", "simulator"])
def test_an_image_has_what_it_runs_and_no_build_or_test_tool(images, name: str):
    stage = images[name]
    assert {"gateway", "routing"} <= set(site_packages(stage))
    assert not {"hatchling", "pytest", "locust", "mypy"} & set(site_packages(stage))
    assert stage.at("/opt/simulator/loadtests").exists() == (name == "simulator")
    assert stage.user > 0


@pytest.fixture
def start(images) -> Iterator:
    """Yield `start(stage, *arguments) -> the ready line of the started container`, as JSON."""
    running = []

    def start_stage(stage, *arguments: str) -> dict:
        drop = (
            {"user": stage.user, "group": stage.user, "extra_groups": []}
            if os.geteuid() == 0
            else {}
        )
        process = subprocess.Popen(
            stage.argv(*arguments),
            cwd=stage.at("."),
            env={k: v for k, v in stage.env.items() if not k.lower().endswith("_proxy")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **drop,
        )
        running.append(process)
        return ready_line(process)

    yield start_stage
    for process in reversed(running):
        process.terminate()
    for process in reversed(running):
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def ready_line(process: subprocess.Popen[bytes]) -> dict:
    deadline, said = time.monotonic() + READY_DEADLINE_S, b""
    while time.monotonic() < deadline:
        if not select.select([process.stdout], [], [], 0.1)[0]:
            continue
        chunk = os.read(process.stdout.fileno(), 65536)
        said += chunk
        for line in said.split(b"\n")[:-1]:
            if line.startswith(b"{") and b'"url"' in line:
                return json.loads(line)
        if not chunk:
            break
    pytest.fail(f"not ready, it said: {said.decode(errors='replace')}")


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.status


# Given after the image's own arguments, these win: no fixed ports, no other interfaces.
ADDRESSES_HERE = (
    *("--host", "127.0.0.1", "--port", "0"),
    *("--kv-events-endpoint", "tcp://127.0.0.1:0"),
    *("--kv-events-replay-endpoint", "tcp://127.0.0.1:0"),
)


def configure(gateway, replica_url: str) -> None:
    """Give the image the configuration of Compose, with addresses of this machine."""
    if not gateway.at("/models/demo").exists():
        shutil.copytree(ROOT / "loadtests/demo_model", gateway.at("/models/demo"))
    config = yaml.safe_load((ROOT / "deploy/compose/gateway.yaml").read_text("utf-8"))
    config["listen"] = config["admin"] = {"host": "127.0.0.1", "port": 0}
    (model,) = config["models"]
    model["replicas"] = [{"url": replica_url}]
    model["tokenizer"] = str(gateway.at(model["tokenizer"]))
    gateway.at("/etc/warmroute/gateway.yaml").write_text(yaml.safe_dump(config))


def test_a_simulator_in_a_container_listens_on_all_interfaces(images):
    command = images["simulator"].command
    assert command[command.index("--host") + 1] == "0.0.0.0"
    assert {"tcp://*:5557", "tcp://*:5558"} <= set(command)


def test_the_gateway_image_starts_as_a_user_without_rights(images, start):
    # Nobody listens on the discard port: the gateway has to live without its replicas.
    configure(images["gateway"], "http://127.0.0.1:9")
    served = start(images["gateway"])
    assert get(f"{served['url']}/livez") == 200
    assert get(f"{served['admin_url']}/metrics") == 200


def test_the_two_images_serve_a_chat(images, start):
    simulator, gateway = images["simulator"], images["gateway"]
    replica = start(simulator, *simulator.command, *ADDRESSES_HERE)
    configure(gateway, replica["url"])
    served = start(gateway)
    wait_until_ready(served["url"])
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    request = urllib.request.Request(
        f"{served['url']}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert json.load(response)["choices"][0]["message"]["role"] == "assistant"


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if get(f"{url}/readyz") == 200:
                return
        except urllib.error.HTTPError as error:
            error.close()
        time.sleep(0.05)
    pytest.fail("no replica became ready")
