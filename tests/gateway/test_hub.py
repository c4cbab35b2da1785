"""A hub that is away is noticed once and soon; what is in the cache does without it."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from gateway.prompt import hub
from gateway.prompt.hub import hub_answers, is_hub_id, why_not

MODEL = Path("loadtests/demo_model")
# A tokenizer needs 2 s of a core, an import 3. The hub's own client tries for 69 s and more.
SOON_S = 60.0


@pytest.mark.parametrize(
    ("source", "is_one"),
    [
        ("Qwen/Qwen3-8B", True),
        ("gpt2", True),
        ("no/such_folder", True),
        ("loadtests/demo_model", False),
        ("/models/qwen3", False),
        ("./qwen3", False),
        ("~/qwen3", False),
        ("a/b/c", False),
    ],
)
def test_what_may_be_the_id_of_a_model_on_the_hub(source, is_one):
    assert is_hub_id(source) is is_one


@contextlib.asynccontextmanager
async def a_hub(status):
    """A hub that answers everything with a status; with None, it accepts and says nothing."""
    done = asyncio.Event()

    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            if status is None:
                await done.wait()
            else:
                writer.write(b"HTTP/1.1 %d -\r\ncontent-length: 0\r\n\r\n" % status)
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        done.set()


@pytest.mark.parametrize(
    ("status", "answers"), [(200, True), (404, True), (502, False), (None, False)]
)
async def test_whether_the_hub_answers(monkeypatch, status, answers):
    monkeypatch.setattr(hub, "ASK_TIMEOUT_S", 0.3 if status is None else 10.0)
    async with a_hub(status) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        assert await hub_answers() is answers
    assert await hub_answers() is False, "nobody listens there any more"


async def test_a_hub_that_is_switched_off_is_not_asked(monkeypatch):
    async with a_hub(200) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert await hub_answers() is False


def test_what_is_missing_and_what_to_do(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "https://user:secret@hub.example")
    error = OSError("cannot\nbe")
    away = why_not("a/b", "tokenizer.json", error, offline=True)
    assert "the hub hub.example does not answer" in away
    assert "secret" not in away
    assert all(word in away for word in ("'a/b'", "tokenizer.json", "HF_HOME", "HF_HUB_OFFLINE=1"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "is not asked (HF_HUB_OFFLINE)" in why_not("a/b", "f", error, offline=True)
    missing = why_not("/models/none", "tokenizer.json", error, offline=True)
    assert missing.endswith("there is no such folder: mount one with tokenizer.json")
    assert why_not("a/b", "f", error, offline=False).endswith("a model on the hub (cannot)")


def lines_until_ready(environment, *flags):
    ports = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "serve", *flags, *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "0", **environment},
    )
    lines = []
    try:
        while not lines or lines[-1]["event"] != "ready":
            lines.append(json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()
    return lines


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("refuses", [True, False])
async def test_a_gateway_starts_without_a_hub(tmp_path, refuses, is_cached):
    if is_cached:
        model = tmp_path / "hub/models--demo--model"
        shutil.copytree(MODEL, model / "snapshots/1", ignore=shutil.ignore_patterns("*.py*"))
        (model / "refs").mkdir()
        (model / "refs/main").write_text("1")
        (model / "snapshots/1/config.json").write_text("{}")  # every model on the hub has one
    flags = ["--replica", "http://127.0.0.1:1", "--tokenizer", "demo/model"]
    async with a_hub(None) as url:
        environment = {"HF_HOME": str(tmp_path)}
        environment["HF_ENDPOINT"] = "http://127.0.0.1:1" if refuses else url
        began = time.monotonic()
        lines = await asyncio.to_thread(lines_until_ready, environment, *flags)
        assert time.monotonic() - began < SOON_S
    told = [line for line in lines if line["event"].startswith("tokenizer_")]
    expected = "tokenizer_loaded" if is_cached else "tokenizer_unavailable"
    assert [line["event"] for line in told] == [expected]
    assert is_cached or "HF_HOME" in told[-1]["problem"]
