"""Every command and every YAML block of the README works as it stands there."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from gateway.config.load import load_config
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
READY_S = 40.0

# Blocks that are no shell commands of this repository, and what covers them.
ELSEWHERE = {
    "score = ": "the formula: tests/routing/test_policies.py",
    "--enable-prompt-tokens-details": "flags of vLLM itself",
    "docker compose": "needs a Docker engine; tests/deploy performs the image's steps",
    "make demo": "tests/integration/test_demo.py",
}


def blocks(language):
    return [text for kind, text in BLOCKS if kind == language]


@pytest.mark.parametrize("text", blocks("yaml"), ids=lambda text: text.split("\n")[0])
def test_yaml_blocks_load(text, tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    assert load_config(file, {}).models


def test_every_other_block_is_run_here_or_covered_elsewhere():
    unknown = [
        text
        for text in (*blocks(""), *(t for t in blocks("sh") if t not in run_here()))
        if not text.startswith(tuple(ELSEWHERE))
    ]
    assert not unknown
    assert {kind for kind, _ in BLOCKS} == {"", "sh", "yaml"}


def test_every_make_target_that_is_named_exists():
    named = set(re.findall(r"`make ([a-z0-9-]+)", README))
    named |= set(re.findall(r"^make (\S+)$", README))
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert named
    assert all(re.search(rf"^  make {name} ", listed.stdout, re.MULTILINE) for name in named)


def run_here():
    """The blocks of the quick start by hand, in order."""
    return [text for text in blocks("sh") if not text.startswith(tuple(ELSEWHERE))]


def test_the_quick_start_by_hand():
    start, chat, explain, pages = run_here()
    ports = {port: str(free_port()) for port in ("8001", "8002", "8080", "9090")}

    def moved(commands):
        # The defaults may be taken on this machine, so every port is replaced by a free one.
        for port, free in ports.items():
            commands = commands.replace(f":{port}", f":{free}").replace(
                f"port {port}", f"port {free}"
            )
        listen = f" --port {ports['8080']} --admin-port {ports['9090']} &"
        return commands.replace("loadtests/demo_model &", f"loadtests/demo_model{listen}")

    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    servers = subprocess.Popen(
        ["bash", "-c", moved(start) + "wait"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )

    def run(commands):
        done = subprocess.run(
            ["bash", "-euc", moved(commands)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout

    try:
        wait_ready(f"http://127.0.0.1:{ports['8080']}/readyz")
        streamed = run(chat)
        assert streamed.count("data: ") >= 9
        assert streamed.rstrip().endswith("data: [DONE]")
        assert '"candidates"' in run(explain)
        assert "warmroute_ttft_seconds_bucket" in run(pages)
    finally:
        os.killpg(servers.pid, signal.SIGTERM)
        servers.wait(20)


def wait_ready(url):
    give_up_at = time.monotonic() + READY_S
    while time.monotonic() < give_up_at:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"{url} did not get ready")


def test_the_demo_table_is_what_the_demo_prints():
    table = README.partition("<!-- demo table -->")[2].partition("<!-- end -->")[0]
    rows = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")}
    assert {"TTFT p50, s", "TTFT p99, s", "TTFT mean, s", "prefix hit ratio"} <= rows
    assert "errors" in rows
